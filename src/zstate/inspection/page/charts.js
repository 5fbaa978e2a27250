// Curves, drawn by uPlot.

function axis(label, more = {}) {
  return { label, labelSize: 18, size: 52, stroke: css("--quiet"), grid: { stroke: css("--line"), width: 0.5 },
    ticks: { stroke: css("--line"), width: 0.5 }, ...more };
}
function power(value) {
  const k = Math.round(Math.log10(value));
  return Math.abs(10 ** k - value) < 1e-6 * value ? (k >= 0 && k < 6 ? String(10 ** k) : `1e${k}`) : "";
}
const LOG_AXIS = { values: (_, splits) => splits.map(power) };

// A chart that is made anew whenever its series change, and fits its place.
class Chart {
  constructor(place, height, { hover, leave, choose, zoom }) {
    Object.assign(this, { place, height, hover, leave, choose, zoom });
    new ResizeObserver(() => {
      if (this.plot && this.plot.width !== place.clientWidth) this.plot.setSize(this.size());
    }).observe(place);
  }
  size() {
    return { width: Math.max(this.place.clientWidth, 120), height: this.height };
  }
  show(options, data) {
    if (this.plot) this.plot.destroy();
    const all = { cursor: { y: false, points: { size: 6 }, drag: { x: Boolean(this.zoom), y: false, setScale: false } }, ...options, ...this.size() };
    all.hooks = { setCursor: [(u) => this.moved(u)], setSelect: [(u) => this.selected(u)], ...options.hooks };
    this.plot = new uPlot(all, data, this.place);
    this.plot.over.addEventListener("click", () => this.choose && this.plot.cursor.idx != null && this.choose(this.plot.cursor.idx));
    this.plot.over.addEventListener("mouseleave", () => this.leave && this.leave());
  }
  // New values of the same series.
  update(data, window) {
    this.plot.batch(() => {
      this.plot.setData(data, false);
      this.range(window);
    });
  }
  // The cursor at a place that is pointed at elsewhere; null takes it away.
  point(x) {
    if (this.plot) this.plot.setCursor({ left: x === null ? -10 : this.plot.valToPos(x, "x"), top: 0 }, false);
  }
  moved(u) {
    if (this.hover && u.cursor.idx != null && u.cursor.left >= 0) this.hover(u.cursor.idx);
  }
  selected(u) {
    if (!this.zoom || u.select.width < 6) return;
    this.zoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  }
  range([from, to]) {
    if (this.plot) this.plot.setScale("x", { min: from, max: Math.max(to - 1, from + 1) });
  }
}

// A vertical line at the chosen place, over whatever a chart shows.
function marker(where) {
  return (u) => {
    const at = where();
    if (at === null) return;
    const x = u.valToPos(at, "x", true);
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
    u.ctx.save();
    u.ctx.strokeStyle = css("--mark");
    u.ctx.lineWidth = 2;
    u.ctx.setLineDash([]);
    u.ctx.beginPath();
    u.ctx.moveTo(x, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
    u.ctx.restore();
  };
}

function unitOptions(layer, where) {
  const series = [{ label: "step" }];
  layer.maps.forEach((each, k) => series.push({
    label: each.name, stroke: curveColour(k), width: 1.5, scale: each.kind, dash: each.kind === "state" ? [5, 3] : [],
    value: (_, v) => number(v), points: { show: false },
  }));
  return {
    scales: { x: { time: false }, gate: {}, state: {} }, series, hooks: { draw: [marker(where)] },
    axes: [axis("step", { size: 36 }), axis("gates", { scale: "gate" }), axis("states (dashed)", { scale: "state", side: 1, grid: { show: false } })],
  };
}
function flowOptions(series, where) {
  return {
    scales: { x: { time: false }, y: { distr: 3 } }, series: [{ label: "step" }, ...series], hooks: { draw: [marker(where)] },
    axes: [axis("step", { size: 36 }), axis("norm", LOG_AXIS)],
  };
}
// Units per bin of the memory's logarithm, four bins per decade.
function histogram(times) {
  const places = Array.from(times, (t) => Math.floor(4 * Math.log10(Math.min(Math.max(t, 0.1), 1e5))));
  const [first, last] = [Math.min(...places), Math.max(...places)];
  const bins = Array.from({ length: last - first + 3 }, (_, k) => first - 1 + k);
  return [bins.map((k) => (k + 0.5) / 4), bins.map((k) => places.filter((p) => p === k).length)];
}
function histogramOptions(where) {
  return {
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(high, 1)] } }, legend: { show: false }, hooks: { draw: [marker(where)] },
    series: [{}, { stroke: curveColour(0), fill: curveColour(0) + "99", paths: uPlot.paths.bars({ size: [1, 100] }), points: { show: false } }],
    axes: [axis("steps until 1/e is left", { size: 36, values: (_, s) => s.map((v) => (Number.isInteger(v) ? (v < 0 ? (10 ** v).toFixed(-v) : String(10 ** v)) : "")) }), axis("units")],
  };
}
function rankedOptions(where) {
  return {
    scales: { x: { time: false }, y: { distr: 3 } }, legend: { show: false }, hooks: { draw: [marker(where)] },
    series: [{}, { stroke: curveColour(0), width: 1, points: { show: true, size: 3 } }],
    axes: [axis("units, by memory", { size: 36 }), axis("steps", LOG_AXIS)],
  };
}
function trainingOptions(names, label) {
  return {
    scales: { x: { time: false } },
    series: [{ label: "step" }, ...names.map((name, k) => ({ label: name, stroke: curveColour(k), width: 1.5, spanGaps: true,
      points: { show: name.endsWith("validation"), size: 5 }, value: (_, v) => number(v) }))],
    axes: [axis("step", { size: 36 }), axis(label)],
  };
}
