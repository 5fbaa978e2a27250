// Everything about one model. The step, the gate and the zoom are the page's, shared by all panes; the
// layer, the unit and the order of the units are the pane's own.

const HIDDEN_SIGNS = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]/;

function shown(label) {
  if (label === "\n") return "⏎";
  if (label === "\t") return "⇥";
  if (label === " ") return "␣";
  return [...label].map((c) => (c.length === 1 && HIDDEN_SIGNS.test(c) ? `⟨${c.charCodeAt(0).toString(16)}⟩` : c)).join("");
}
function percent(part) {
  return `${(100 * part).toFixed(1)}%`;
}
function bar(part) {
  const element = make("span", "bar");
  element.style.width = `${Math.max(60 * part, 1)}px`;
  return element;
}

class Pane {
  constructor(model, app) {
    [this.model, this.app, this.unit, this.orderName] = [model, app, 0, "activity"];
    this.element = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.parts = (name) => this.element.querySelector(name);
    this.parts(".name").textContent = model.name;
    this.parts(".summary").textContent = model.summary;
    this.byLoss = Boolean(model.loss);
    this.fillText();
    this.fill(".layer", model.layers.map((each) => `${each.name} (${each.cell} of ${each.units})`), true);
    this.layerNumber = model.layers.length - 1;
    this.parts(".layer").value = this.layerNumber;
    this.listen();
  }
  get layer() {
    return this.model.layers[this.layerNumber];
  }
  get order() {
    return this.layer.orders[this.orderName];
  }
  get map() {
    return this.layer.map(this.app.map) || this.layer.maps[0];
  }
  fill(place, names, numbered = false) {
    const select = this.parts(place);
    select.replaceChildren(...names.map((name, k) => new Option(name, numbered ? k : name)));
  }
  fillText() {
    const box = this.parts(".text");
    const long = this.model.labels.some((label) => [...label].length > 2);
    box.classList.toggle("words", long);
    this.spans = this.model.labels.map((label, k) => {
      const span = make("span", "", label === " " ? " " : shown(label));
      span.dataset.step = k;
      return span;
    });
    this.spans.forEach((span, k) => box.append(span, this.model.labels[k] === "\n" ? "\n" : ""));
  }
  listen() {
    const { app } = this;
    const text = this.parts(".text");
    const stepOf = (event) => (event.target.dataset.step === undefined ? null : Number(event.target.dataset.step));
    text.addEventListener("pointermove", (event) => {
      const step = stepOf(event);
      if (step === null) return app.leave();
      app.hover(this, { step });
      this.showTip(step, event);
    });
    text.addEventListener("pointerleave", () => app.leave());
    text.addEventListener("click", (event) => stepOf(event) !== null && app.choose(this, { step: stepOf(event) }));
    this.parts(".layer").addEventListener("change", (event) => this.showLayer(Number(event.target.value)));
    this.parts(".unit").addEventListener("change", (event) => {
      const unit = Math.min(Math.max(Math.round(Number(event.target.value) || 0), 0), this.layer.units - 1);
      app.choose(this, { unit });
    });
    this.parts(".order").addEventListener("change", (event) => this.showOrder(event.target.value));
    this.parts(".like").addEventListener("click", () => this.showLike());
    this.parts(".state").addEventListener("change", () => this.showMemory());
    this.parts(".colour").addEventListener("change", ({ target }) => {
      this.byLoss = target.value === "loss";
      if (!this.byLoss) app.choose(this, { map: target.value });
      this.showColours();
    });
    const steps = {
      hover: (step) => app.hover(this, { step }), leave: () => app.leave(), choose: (step) => app.choose(this, { step }),
      zoom: (from, to) => app.zoomTo(Math.round(from), Math.round(to) + 1),
    };
    this.unitChart = new Chart(this.parts(".unit-chart"), 230, steps);
    this.flowChart = new Chart(this.parts(".flow-chart"), 230, steps);
    this.histogram = new Chart(this.parts(".histogram"), 190, {});
    this.ranked = new Chart(this.parts(".ranked"), 190, { choose: (k) => app.choose(this, { unit: this.byMemory[k] }) });
  }

  // A layer: its maps, its orders, its charts.
  showLayer(k) {
    this.layerNumber = k;
    this.parts(".layer").value = k;
    this.unit = Math.min(this.unit, this.layer.units - 1);
    this.near = null;
    delete this.layer.orders[this.likeName];
    this.fill(".order", Object.keys(this.layer.orders));
    if (!(this.orderName in this.layer.orders)) this.orderName = "activity";
    this.parts(".order").value = this.orderName;
    this.parts(".unit").max = this.layer.units - 1;
    const names = this.layer.maps.map((each) => each.name);
    this.fill(".colour", this.model.loss ? ["loss", ...names] : names);
    this.fill(".state", Object.keys(this.layer.memory));
    const events = {
      hover: (place) => this.app.hover(this, place), leave: () => this.app.leave(), choose: (place) => {
        this.byLoss = false;
        this.app.choose(this, place);
      },
    };
    this.maps = this.layer.maps.map((values) => new UnitMap(values, events));
    this.parts(".maps").replaceChildren(...this.maps.map((each) => each.element));
    this.redraw();
  }
  // All that depends on colours and sizes.
  redraw() {
    const at = () => this.app.step;
    this.unitChart.show(unitOptions(this.layer, at), this.unitData());
    const series = this.flows().map(([layer, state], k) => ({
      label: `${this.model.layers.length > 1 ? layer.name + " " : ""}dL/d${state}`, stroke: curveColour(k), width: 1.5,
      dash: k % 2 ? [5, 3] : [], value: (_u, v, _s, at) => (at == null ? "–" : v == null ? "0" : v.toExponential(3)), points: { show: false },
    }));
    this.flowChart.show(flowOptions(series, at), this.flowData());
    this.drawMaps();
    this.showMemory();
    this.showColours();
    this.mark();
  }
  drawMaps() {
    for (const each of this.maps) each.draw(this.order, this.app.zoom);
    this.unitChart.range(this.app.zoom);
    this.flowChart.range(this.app.zoom);
  }
  showOrder(name) {
    this.orderName = name;
    this.parts(".order").value = name;
    this.drawMaps();
    this.mark();
  }
  showLike() {
    delete this.layer.orders[this.likeName];
    this.likeName = `like unit ${this.unit}`;
    const [order, near] = this.layer.like(this.unit);
    this.layer.orders[this.likeName] = order;
    this.near = { unit: this.unit, near };
    this.fill(".order", Object.keys(this.layer.orders));
    this.showOrder(this.likeName);
  }

  // What was chosen, here or elsewhere.
  showChoice(changed) {
    if ("unit" in changed || "step" in changed) this.unitChart.update(this.unitData(), this.app.zoom);
    if ("step" in changed) this.flowChart.update(this.flowData(), this.app.zoom);
    if ("unit" in changed) this.showMemory();
    if ("unit" in changed || "map" in changed) this.showColours();
    this.mark();
  }
  unitData() {
    return [Array.from({ length: this.model.steps }, (_, k) => k), ...this.layer.maps.map((each) => each.ofUnit(this.unit))];
  }
  flows() {
    return this.model.layers.flatMap((layer) => Object.keys(layer.said).map((state) => [layer, state]));
  }
  flowData() {
    const loss = this.model.nearestLoss(this.app.step);
    const at = this.model.losses[loss];
    const near = at === this.app.step ? "" : `, the nearest computed to step ${this.app.step}`;
    this.parts(".flow-of").textContent = `norms of the gradient of ${this.model.ofLoss} at step ${at}${near}, with respect to the states of every step`;
    return [Array.from({ length: this.model.steps }, (_, k) => k), ...this.flows().map(([layer, state]) => layer.flowOf(state, loss))];
  }
  showMemory() {
    const states = Object.keys(this.layer.memory);
    this.parts(".memory").querySelector(".columns").hidden = !states.length;
    this.parts(".state-label").hidden = states.length < 2;
    this.showSaturation();
    if (!states.length) {
      this.parts(".memory-of").textContent = "units of this cell keep nothing by themselves: everything goes through the recurrent weight";
      return;
    }
    const times = this.layer.memory[this.parts(".state").value || states[0]];
    this.byMemory = Array.from(times.keys()).sort((a, b) => times[b] - times[a]);
    const middle = times[this.byMemory[Math.floor(times.length / 2)]];
    this.parts(".memory-of").textContent = `steps until 1/e of a value is left: median ${number(middle)}, unit ${this.unit}: ${number(times[this.unit])}`;
    this.histogram.show(histogramOptions(() => Math.log10(times[this.unit])), histogram(times));
    this.ranked.show(rankedOptions(() => this.byMemory.indexOf(this.unit)), [this.byMemory.map((_, k) => k), this.byMemory.map((unit) => times[unit])]);
  }
  showSaturation() {
    const rows = this.layer.maps.filter((each) => each.ofAll).map((each) => {
      const row = make("tr");
      row.append(make("td", "", `${each.name} (below ${each.span[0] < 0 ? "−0.9" : "0.1"}, above 0.9)`));
      for (const part of [...each.ofAll, ...each.saturation(this.unit)]) {
        const cell = make("td", "", percent(part));
        cell.append(bar(part));
        row.append(cell);
      }
      return row;
    });
    this.parts(".saturation tbody").replaceChildren(...rows);
    this.parts(".saturation").hidden = !rows.length;
  }
  // The text's colours: the loss, or the chosen gate of the chosen unit.
  showColours() {
    const { map, model } = this;
    this.parts(".colour").value = this.byLoss ? "loss" : map.name;
    const values = this.byLoss ? model.loss : map.ofUnit(this.unit);
    const most = this.byLoss ? Math.max(Float32Array.from(values).sort()[Math.floor(0.98 * values.length)], 1) : 0;
    // A state of one unit may be far smaller than the layer's: it has its own range.
    const reach = this.byLoss || map.function ? 0 : Math.max(...values.map(Math.abs)) || 1;
    const span = this.byLoss ? [-most, most] : reach ? [-reach, reach] : map.span;
    this.spans.forEach((span_, k) => {
      const colour = colourOf(values[k], span);
      span_.style.backgroundColor = `rgb(${colour})`;
      span_.style.color = isBright(colour) ? "#000" : "#fff";
    });
    this.parts(".legend").textContent = this.byLoss
      ? `0 to ${most.toFixed(1)} bits for the next character or class`
      : `${map.name} of unit ${this.unit}, ${number(span[0])} to ${number(span[1])}`;
  }
  // Lines, values and outlines at the chosen place and at the one under the pointer.
  mark(over = null) {
    const { step } = this.app;
    const row = this.order.indexOf(this.unit);
    for (const each of this.maps) {
      each.mark({ step, unit: this.unit, row }, over);
      each.element.classList.toggle("chosen", each.values === this.map);
    }
    this.outline("chosen", step);
    this.outline("hovered", over ? over.step : null);
    for (const chart of [this.unitChart, this.flowChart]) chart.point(over ? over.step : null);
    this.parts(".unit").value = this.unit;
    const unit = over && over.unit !== undefined ? over.unit : this.unit;
    const like = this.near && this.near.unit !== unit ? `, correlation ${number(this.near.near[unit])} with unit ${this.near.unit}` : "";
    this.parts(".place").textContent = `step ${over ? over.step : step}, unit ${unit}${like}; steps ${this.app.zoom[0]} to ${this.app.zoom[1] - 1}, ${this.orderName}`;
    this.parts(".read").replaceChildren(...this.sentence(over ? over.step : step));
  }
  outline(name, step) {
    const old = this[name];
    if (old) old.classList.remove(name);
    const span = step === null ? null : this.spans[step];
    this[name] = span;
    if (span) span.classList.add(name);
    if (!span || name === "hovered") return;
    const box = this.parts(".text");  // its own scrolling: the page stays where it is
    if (span.offsetTop < box.scrollTop || span.offsetTop + span.offsetHeight > box.scrollTop + box.clientHeight)
      box.scrollTop = span.offsetTop - box.clientHeight / 2;
  }
  sentence(step) {
    const { model } = this;
    const said = [`step ${step}: `, make("b", "", shown(model.labels[step]))];
    if (!model.loss) return said;
    said.push(" → expected ");
    model.expected(step).forEach(([name, p], k) => said.push(k ? ", " : "", make("b", "", shown(name)), ` ${percent(p)}`));
    said.push("; came ", make("b", "", shown(model.className(model.targets[step]))), `, ${model.loss[step].toFixed(3)} bits`);
    return said;
  }
  showTip(step, event) {
    const tip = document.getElementById("tip");
    const { model, map } = this;
    const lines = model.expected(step).map(([name, p]) => {
      const line = make("div");
      line.append(make("b", "", shown(name)), ` ${percent(p)} `, bar(p));
      return line;
    });
    if (model.loss) lines.unshift(make("div", "", "expected next:"));
    if (model.loss) lines.push(make("div", "", `actual next ${shown(model.className(model.targets[step]))}: ${model.loss[step].toFixed(2)} bits`));
    lines.push(make("div", "", `${map.name} of unit ${this.unit}: ${number(map.at(step, this.unit))}`));
    tip.replaceChildren(...lines);
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
  }
}
