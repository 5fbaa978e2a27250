// The page: one program at a time, drawn where layOut put it; zoom, search, neighbours.
const said = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const svg = $("picture");
let picture, places, boxes, lines, view;

function made(name, attributes, parent, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function rounded(points) {
  const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
  const corners = points.filter((p, k) => k === 0 || apart(p, points[k - 1]) > 0.5);
  const towards = (corner, other) => {
    const part = Math.min(8 / apart(corner, other), 0.5);
    return [0, 1].map((k) => corner[k] + (other[k] - corner[k]) * part);
  };
  const turns = corners.slice(1, -1).map((corner, k) =>
    `L${towards(corner, corners[k])}Q${corner} ${towards(corner, corners[k + 2])}`);
  return `M${corners[0]}${turns.join("")}L${corners.at(-1)}`;
}

function draw() {
  const program = said.programs[$("program").selectedIndex];
  picture = $("all").checked ? program.all : program.folded;
  places = layOut(picture);
  for (const id of ["lines", "boxes", "labels"]) $(id).replaceChildren();
  lines = picture.edges.map((edge, k) => {
    const { points, label } = places.lines[k];
    const line = made("path", { d: rounded(points), class: "line", "marker-end": "url(#arrow)" }, $("lines"));
    made("title", {}, line, edge.hint);
    if (!label) return [line];
    return [line, made("text", { x: label[0], y: label[1] + 4, class: "label" }, $("labels"), edge.label)];
  });
  boxes = picture.boxes.map((box, k) => {
    const [x, y] = places.at[k];
    const group = made("g", { class: `box ${box.kind}` }, $("boxes"));
    made("title", {}, group, box.hint);
    made("rect", { x, y, width: box.width, height: box.height, rx: 6 }, group);
    [box.title, ...box.lines].forEach((text, n) => made("text", { x: x + 10, y: y + 19 + 16 * n }, group, text));
    group.addEventListener("pointerenter", () => near(k));
    group.addEventListener("pointerleave", search);
    return group;
  });
  const shown = boxes.length === 1 ? "1 box" : `${boxes.length} boxes`;
  $("about").textContent = `${program.nodes} nodes in ${shown}`;
  fit(0.6);  // small, but legible
  search();
}

function mark(isBox, isLine, dims) {
  boxes.forEach((box, k) => box.classList.toggle("near", isBox(k)));
  lines.forEach((parts, k) => parts.forEach((part) => part.classList.toggle("near", isLine(picture.edges[k]))));
  svg.classList.toggle("dim", dims);
}

function near(k) {
  const around = new Set([k]);
  for (const { from, to } of picture.edges) {
    if (from === k) around.add(to);
    if (to === k) around.add(from);
  }
  mark((each) => around.has(each), ({ from, to }) => from === k || to === k, true);
}

function matches() {
  const words = $("find").value.toLowerCase().trim();
  if (!words) return [];
  const has = (box) => [box.title, ...box.lines, box.hint].some((text) => text.toLowerCase().includes(words));
  return picture.boxes.flatMap((box, k) => (has(box) ? [k] : []));
}

function search() {
  const found = new Set(matches());
  const asked = $("find").value.trim() !== "";
  $("found").textContent = asked ? `${found.size} found` : "";
  mark((k) => found.has(k), () => false, asked);
}

function look(next) {
  view = next;
  svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
}

function fit(least = 0.02) {
  const { clientWidth: w, clientHeight: h } = svg;
  const scale = Math.max(Math.min(w / places.width, h / places.height, 1.25), least);
  const width = w / scale, height = h / scale;
  // Centred; what does not fit, from its top and around its first box.
  const [left] = places.at[0] || [0];
  const x = width < places.width ? left + picture.boxes[0].width / 2 - width / 2 : (places.width - width) / 2;
  look({ x, y: Math.min((places.height - height) / 2, 0), width, height });
}

function zoom(factor, cx = svg.clientWidth / 2, cy = svg.clientHeight / 2) {
  const width = Math.min(Math.max(view.width * factor, 120), 4 * Math.max(places.width, svg.clientWidth));
  const change = width / view.width;
  const px = view.x + (cx / svg.clientWidth) * view.width;
  const py = view.y + (cy / svg.clientHeight) * view.height;
  look({ x: px - (px - view.x) * change, y: py - (py - view.y) * change, width, height: view.height * change });
}

function move(dx, dy) {
  const each = view.width / svg.clientWidth;
  look({ ...view, x: view.x - dx * each, y: view.y - dy * each });
}

let turn = 0;
function next() {
  const found = matches();
  if (!found.length) return;
  const k = found[turn++ % found.length];
  const [x, y] = places.at[k], { width, height } = picture.boxes[k];
  const scale = Math.min(view.width, svg.clientWidth) / view.width;
  const size = { width: view.width * scale, height: view.height * scale };
  look({ x: x + width / 2 - size.width / 2, y: y + height / 2 - size.height / 2, ...size });
}

said.programs.forEach(({ name }) => $("program").append(new Option(name || "graph", name, false, name === said.chosen)));
$("choice").hidden = said.programs.length < 2;
$("all").checked = said.unfold;
$("program").addEventListener("change", draw);
$("all").addEventListener("change", draw);
$("find").addEventListener("input", () => { turn = 0; search(); });
$("find").addEventListener("keydown", (event) => { if (event.key === "Enter") next(); });
$("in").addEventListener("click", () => zoom(0.7));
$("out").addEventListener("click", () => zoom(1 / 0.7));
$("fit").addEventListener("click", () => fit());
svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(event.deltaY * 0.0015), event.offsetX, event.offsetY);
}, { passive: false });
svg.addEventListener("pointermove", (event) => { if (event.buttons & 1) move(event.movementX, event.movementY); });
const keys = { "+": () => zoom(0.7), "-": () => zoom(1 / 0.7), 0: () => fit(), ArrowLeft: () => move(60, 0),
               ArrowRight: () => move(-60, 0), ArrowUp: () => move(0, 60), ArrowDown: () => move(0, -60) };
document.addEventListener("keydown", (event) => {
  if (!["INPUT", "SELECT"].includes(event.target.tagName) && keys[event.key]) keys[event.key]();
});
window.addEventListener("resize", () => fit(0.6));
draw();
document.documentElement.dataset.ready = "yes";
