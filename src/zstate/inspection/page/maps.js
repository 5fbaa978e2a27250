// One gate or state as a picture: a row per unit, a column per step.

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(3) : value.toFixed(4);
}

class UnitMap {
  constructor(values, { hover, leave, choose }) {
    this.values = values;
    this.element = make("div", "map");
    this.element.dataset.map = values.name;
    const head = make("h4");
    const of = values.kind === "state" ? "state" : values.function || "gate, before its activation";
    this.value = make("span", "value");
    this.scale = make("span", "scale");
    this.ends = make("small", "", `${number(values.span[0])} … ${number(values.span[1])}`);
    head.append(make("b", "", values.name), make("small", "", of), this.scale, this.ends, this.value);
    this.plot = make("div", "plot");
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${values.kind} ${values.name}: units by steps`);
    this.lines = Object.fromEntries(["at-step", "at-unit", "over-step"].map((name) => [name, make("i", name)]));
    this.plot.append(this.canvas, ...Object.values(this.lines));
    this.element.append(head, this.plot);
    head.addEventListener("click", () => choose({ map: values.name }));
    this.plot.addEventListener("pointermove", (event) => hover(this.under(event)));
    this.plot.addEventListener("pointerleave", leave);
    this.plot.addEventListener("click", (event) => choose({ map: values.name, ...this.under(event) }));
  }
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const [from, to] = this.window;
    const part = (x, size) => Math.min(Math.max(x / size, 0), 0.999999);
    const row = Math.floor(part(event.clientY - box.top, box.height) * this.order.length);
    return { step: from + Math.floor(part(event.clientX - box.left, box.width) * (to - from)), unit: this.order[row] };
  }
  // Each point of the screen is the mean of the values that fall on it.
  draw(order, [from, to]) {
    [this.order, this.window] = [order, [from, to]];
    const { levels, steps, low, step, span } = this.values;
    const scale = Math.min(window.devicePixelRatio || 1, 2);
    const width = Math.max(Math.round(this.plot.clientWidth * scale), 1);
    const height = Math.max(Math.round(this.plot.clientHeight * scale), 1);
    [this.canvas.width, this.canvas.height] = [width, height];
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const words = new Uint32Array(image.data.buffer);
    const colours = table(span);
    const count = to - from;
    const sums = new Float32Array(count);
    const starts = Int32Array.from({ length: width + 1 }, (_, x) => Math.floor((x * count) / width));
    const gain = (511 * step) / (span[1] - span[0]);
    const offset = (511 * (low - span[0])) / (span[1] - span[0]) + 0.5;
    let done = -1;
    for (let y = 0; y < height; y++) {
      const first = Math.floor((y * order.length) / height);
      const last = Math.max(Math.floor(((y + 1) * order.length) / height), first + 1);
      if (done === first && last === first + 1) {  // several points show the same unit
        words.copyWithin(y * width, (y - 1) * width, y * width);
        continue;
      }
      done = first;
      sums.fill(0);
      for (let k = first; k < last; k++) {
        const base = order[k] * steps + from;
        for (let t = 0; t < count; t++) sums[t] += levels[base + t];
      }
      for (let x = 0; x < width; x++) {
        const begin = starts[x];
        const end = Math.max(starts[x + 1], begin + 1);
        let sum = 0;
        for (let t = begin; t < end; t++) sum += sums[t];
        const colour = (sum / ((end - begin) * (last - first))) * gain + offset;
        words[y * width + x] = colours[colour < 0 ? 0 : colour > 511 ? 511 : colour | 0];
      }
    }
    context.putImageData(image, 0, 0);
    this.scale.style.background = ramp(span);
  }
  mark(chosen, over) {
    const [from, to] = this.window;
    const percent = (part) => `${100 * part}%`;
    const put = (line, step) => {
      line.hidden = step === null || step < from || step >= to;
      line.style.left = percent((step + 0.5 - from) / (to - from));
    };
    put(this.lines["at-step"], chosen.step);
    put(this.lines["over-step"], over ? over.step : null);
    this.lines["at-unit"].style.top = percent((chosen.row + 0.5) / this.order.length);
    const { step, unit } = { ...chosen, ...over };
    this.value.textContent = number(this.values.at(step, unit));
  }
}
