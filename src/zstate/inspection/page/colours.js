// Two ramps that differ in lightness all the way, so that they can be told apart in any colour vision:
// one from low to high, one from negative (blue) over nothing to positive (orange).

const RAMPS = {
  light: { one: ["#0b1d51", "#27598c", "#3f9292", "#9ac46a", "#fff3a6"], two: ["#0b3c8c", "#6ea6d8", "#f7f7f5", "#eda05a", "#8a3300"] },
  dark: { one: ["#0b1d51", "#27598c", "#3f9292", "#9ac46a", "#fff3a6"], two: ["#9cc8ff", "#3670b0", "#161a20", "#b5621f", "#ffc48a"] },
};
// For curves: Okabe and Ito's colours, of which the darkest and the lightest need the theme's help.
const CURVES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#a8527f", "#8a6d00", "#3a86c8", "#333333"],
  dark: ["#56b4e9", "#e69f00", "#2cc79b", "#e59ac4", "#f0e442", "#9ad0f5", "#dddddd"],
};

function theme() {
  return document.documentElement.dataset.theme;
}
function curveColour(k) {
  const colours = CURVES[theme()];
  return colours[k % colours.length];
}
function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
function parts(colour) {
  return [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));
}
// [r,g,b] of a value in a span; a span with 0 inside has the ramp with two ends.
function colourOf(value, [low, high]) {
  const stops = RAMPS[theme()][low < 0 ? "two" : "one"];
  const place = Math.min(Math.max((value - low) / (high - low), 0), 1) * (stops.length - 1);
  const k = Math.min(Math.floor(place), stops.length - 2);
  const [a, b] = [parts(stops[k]), parts(stops[k + 1])];
  return a.map((each, n) => Math.round(each + (b[n] - each) * (place - k)));
}
function ramp(span) {
  const stops = Array.from({ length: 9 }, (_, k) => colourOf(span[0] + (k / 8) * (span[1] - span[0]), span));
  return `linear-gradient(to right, ${stops.map((c) => `rgb(${c})`).join(", ")})`;
}
function isBright([r, g, b]) {
  return 0.299 * r + 0.587 * g + 0.114 * b > 140;
}
// 512 colours over a span, as the words of an image: far more than anyone can tell apart.
function table(span) {
  const words = new Uint32Array(512);
  words.forEach((_, k) => {
    const [r, g, b] = colourOf(span[0] + (k / 511) * (span[1] - span[0]), span);
    words[k] = (255 << 24) | (b << 16) | (g << 8) | r;
  });
  return words;
}
