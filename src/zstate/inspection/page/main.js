// The page: what is chosen on it, the keys, and what all panes share.

class App {
  constructor(data, buffer) {
    this.models = data.models.map((said) => new Model(buffer, said));
    this.steps = Math.max(...this.models.map((model) => model.steps));
    [this.step, this.map, this.zoom] = [0, this.models[0].layers.at(-1).maps[0].name, [0, this.steps]];
    this.panes = this.models.map((model) => new Pane(model, this));
    this.active = this.panes[0];
    this.over = null;
  }
  start() {
    const place = document.getElementById("panes");
    place.replaceChildren(...this.panes.map((pane) => pane.element));
    place.classList.toggle("two", this.panes.length > 1);
    this.fromHash();
    for (const pane of this.panes) pane.showLayer(pane.layerNumber);
    this.showTraining();
    let width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === width) return;
      width = innerWidth;
      for (const pane of this.panes) pane.drawMaps();
      for (const pane of this.panes) pane.mark();
    });
    document.addEventListener("keydown", (event) => this.key(event));
  }
  // A step, a unit, a gate, or several of them; a unit is that of one pane.
  choose(pane, chosen) {
    this.active = pane;
    if ("step" in chosen) this.step = Math.min(Math.max(chosen.step, 0), this.steps - 1);
    if ("map" in chosen) this.map = chosen.map;
    if ("unit" in chosen) pane.unit = chosen.unit;
    for (const each of this.panes) {
      const { unit, ...shared } = chosen;
      each.showChoice(each === pane ? chosen : shared);
    }
    if (this.step < this.zoom[0] || this.step >= this.zoom[1]) this.slide();
    document.getElementById("status").textContent = pane.parts(".read").textContent;
    this.toHash();
  }
  hover(pane, over) {
    this.over = over;
    for (const each of this.panes) each.mark(each === pane ? over : { step: over.step });
  }
  leave() {
    document.getElementById("tip").hidden = true;
    if (!this.over) return;
    this.over = null;
    for (const each of this.panes) each.mark();
  }
  zoomTo(from, to) {
    const count = Math.min(Math.max(to - from, Math.min(8, this.steps)), this.steps);
    const start = Math.min(Math.max(from, 0), this.steps - count);
    this.zoom = [start, start + count];
    for (const pane of this.panes) pane.drawMaps();
    for (const pane of this.panes) pane.mark();
    this.toHash();
  }
  zoomBy(factor) {
    const count = Math.round((this.zoom[1] - this.zoom[0]) * factor);
    const start = this.step - Math.floor(count / 2);
    this.zoomTo(start, start + count);
  }
  slide() {
    const count = this.zoom[1] - this.zoom[0];
    this.zoomTo(this.step - Math.floor(count / 2), this.step - Math.floor(count / 2) + count);
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const pane = this.active;
    const many = event.shiftKey ? 10 : 1;
    const unit = (by) => {
      const row = pane.order.indexOf(pane.unit) + by;
      this.choose(pane, { unit: pane.order[Math.min(Math.max(row, 0), pane.layer.units - 1)] });
    };
    const map = (by) => {
      const names = pane.layer.maps.map((each) => each.name);
      pane.byLoss = false;
      this.choose(pane, { map: names[(names.indexOf(pane.map.name) + by + names.length) % names.length] });
    };
    const does = {
      ArrowLeft: () => this.choose(pane, { step: this.step - many }), ArrowRight: () => this.choose(pane, { step: this.step + many }),
      ArrowUp: () => unit(-many), ArrowDown: () => unit(many), "[": () => map(-1), "]": () => map(1),
      "+": () => this.zoomBy(0.5), "=": () => this.zoomBy(0.5), "-": () => this.zoomBy(2), 0: () => this.zoomTo(0, this.steps),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }
  // What is chosen is kept in the address: a link or a reload shows the same.
  toHash() {
    const pane = this.panes[0];
    const said = { step: this.step, map: this.map, layer: pane.layerNumber, unit: pane.unit, zoom: this.zoom.join("-") };
    history.replaceState(null, "", `#${new URLSearchParams(said)}`);
  }
  fromHash() {
    const said = new URLSearchParams(location.hash.slice(1));
    const whole = (name, most) => {
      const value = Number(said.get(name));
      return said.has(name) && Number.isInteger(value) && value >= 0 && value < most ? value : null;
    };
    const pane = this.panes[0];
    this.step = whole("step", this.steps) ?? Math.min(Math.floor(this.steps / 2), this.steps - 1);
    pane.layerNumber = whole("layer", pane.model.layers.length) ?? pane.layerNumber;
    for (const each of this.panes) each.unit = each.layer.orders.activity[0];
    pane.unit = whole("unit", pane.layer.units) ?? pane.unit;
    this.map = said.get("map") ?? this.map;
    const [from, to] = (said.get("zoom") ?? "").split("-").map(Number);
    if (Number.isInteger(from) && Number.isInteger(to) && from >= 0 && to > from && to <= this.steps) this.zoom = [from, to];
  }
  showTraining() {
    const runs = this.models.filter((model) => Object.values(model.training).some((curve) => curve.length));
    document.getElementById("training").hidden = !runs.length;
    if (!runs.length) return;
    const select = document.getElementById("curve");
    const kinds = { "loss in bits": ["training", "validation"], "gradient norm": ["gradient norm"], "learning rate": ["learning rate"] };
    const there = Object.keys(kinds).filter((kind) => runs.some((run) => kinds[kind].some((name) => run.training[name].some((v) => v !== null))));
    if (!select.options.length) select.append(...there.map((kind) => new Option(kind)));
    const chart = this.training || new Chart(document.querySelector("#training .chart"), 240, {});
    this.training = chart;
    const show = () => {
      const names = [];
      const longest = Math.max(...runs.map((run) => run.training.training.length));
      const data = [Array.from({ length: longest }, (_, k) => k + 1)];
      for (const run of runs)
        for (const name of kinds[select.value]) {
          names.push(runs.length > 1 ? `${run.name} ${name}` : name);
          data.push(Array.from({ length: longest }, (_, k) => run.training[name][k] ?? null));
        }
      chart.show(trainingOptions(names, select.value), data);
    };
    select.onchange = show;
    show();
  }
  setTheme(name) {
    document.documentElement.dataset.theme = name;
    document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
  }
  redraw() {
    for (const pane of this.panes) pane.redraw();
    this.showTraining();
  }
}

async function follow(version) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 2000));
    try {
      const answer = await fetch("version", { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== version) return location.reload();
    } catch {
      return;  // the server has ended
    }
  }
}

async function begin() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  const data = JSON.parse(document.getElementById("data").textContent);
  const buffer = await inflated(document.getElementById("blob").textContent);
  const app = new App(data, buffer);
  window.page = app;  // for the console: page.models[0].layers[0].map("f").at(step, unit)
  document.title = `${data.models.map((model) => model.name).join(" and ")} · zstate inspect`;
  const worst = Math.max(...app.models.flatMap((m) => m.layers.flatMap((l) => l.maps.map((v) => v.step / (v.span[1] - v.span[0])))));
  document.getElementById("about").textContent =
    `zstate ${data.version}. Values have ${data.bits} bits between their map's smallest and largest value, so they are exact to ±${Number((50 * worst).toPrecision(1))}% of its colour range or better.`;
  app.setTheme(document.documentElement.dataset.theme);
  const change = (name) => {
    app.setTheme(name);
    app.redraw();
  };
  dark.addEventListener("change", () => change(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => change(theme() === "dark" ? "light" : "dark"));
  app.start();
  if (data.follow !== null) follow(data.follow);
  document.documentElement.dataset.ready = "yes";
}

begin();
