// The arrays of the page: inflated once, then looked at in place.

async function inflated(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) bytes[k] = text.charCodeAt(k);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

const VIEWS = { u1: Uint8Array, i4: Int32Array, f4: Float32Array };

function arrayAt(buffer, { at, count, type }) {
  if (type !== "u2 planes") return new VIEWS[type](buffer, at, count);
  const high = new Uint8Array(buffer, at, count);
  const low = new Uint8Array(buffer, at + count, count);
  return Uint16Array.from(high, (value, k) => (value << 8) | low[k]);
}

// A gate or a state: levels [H,T], each low + level * step.
class Values {
  constructor(buffer, said, steps) {
    const { at: _, saturation, ...rest } = said;
    Object.assign(this, rest);
    this.ofAll = saturation;
    this.levels = arrayAt(buffer, said);
    this.steps = steps;
  }
  at(step, unit) {
    return this.low + this.levels[unit * this.steps + step] * this.step;
  }
  ofUnit(unit) {
    const row = this.levels.subarray(unit * this.steps, (unit + 1) * this.steps);
    return Float64Array.from(row, (level) => this.low + level * this.step);
  }
  // The shares of a unit's values at both ends, as the table has them for all units.
  saturation(unit) {
    const [low] = this.span;
    const values = this.ofUnit(unit);
    const share = (is) => values.filter(is).length / values.length;
    const below = low + 0.1 * (this.span[1] - low) * (low < 0 ? 0.5 : 1);
    return [share((v) => v < below), share((v) => v > 0.9)];
  }
}

class Layer {
  constructor(buffer, said, steps) {
    Object.assign(this, said);
    this.maps = said.maps.map((each) => new Values(buffer, each, steps));
    const all = (named) => Object.fromEntries(Object.entries(named).map(([k, v]) => [k, arrayAt(buffer, v)]));
    this.orders = { "as they are": Int32Array.from({ length: this.units }, (_, k) => k), ...all(said.orders) };
    this.memory = all(said.memory);
    this.levels = all(said.flow);
    this.said = said.flow;
    this.steps = steps;
  }
  map(name) {
    return this.maps.find((each) => each.name === name);
  }
  // The norm of dL/ds of a state at every step, for the loss with this number; null where it is 0.
  flowOf(state, loss) {
    const { low, step } = this.said[state];
    const row = this.levels[state].subarray(loss * this.steps, (loss + 1) * this.steps);
    return Array.from(row, (level) => (level ? 10 ** (low + (level - 1) * step) : null));
  }
  // Units by how their output moves with that of one: [order, correlations].
  like(unit) {
    const output = this.maps.find((each) => each.kind === "state");
    const moved = (values) => {
      const mean = values.reduce((a, b) => a + b, 0) / values.length;
      const centred = values.map((v) => v - mean);
      const norm = Math.sqrt(centred.reduce((a, b) => a + b * b, 0)) || 1;
      return centred.map((v) => v / norm);
    };
    const one = moved(output.ofUnit(unit));
    const near = Float64Array.from({ length: this.units }, (_, k) =>
      moved(output.ofUnit(k)).reduce((sum, v, t) => sum + v * one[t], 0));
    near[unit] = 1;
    const order = Int32Array.from({ length: this.units }, (_, k) => k).sort((a, b) => near[b] - near[a]);
    return [order, near];
  }
}

class Model {
  constructor(buffer, said) {
    Object.assign(this, said);
    this.steps = said.labels.length;
    this.layers = said.layers.map((each) => new Layer(buffer, each, this.steps));
    for (const name of ["loss", "losses", "targets", "top", "topClasses"])
      this[name] = said[name] && arrayAt(buffer, said[name]);
  }
  className(id) {
    return this.classes ? this.classes[id] : String(id);
  }
  // The likeliest classes after a step: [[name, probability], …].
  expected(step) {
    if (!this.top) return [];
    const count = this.top.length / this.steps;
    return Array.from({ length: count }, (_, k) => {
      const place = step * count + k;
      return [this.className(this.topClasses[place]), this.top[place]];
    });
  }
  // The number of the loss that is looked at nearest to a step.
  nearestLoss(step) {
    let best = 0;
    this.losses.forEach((at, k) => {
      if (Math.abs(at - step) < Math.abs(this.losses[best] - step)) best = k;
    });
    return best;
  }
}
