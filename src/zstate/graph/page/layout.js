// Places of boxes and arrows by dagre: in the page, and for still pictures in QuickJS.
"use strict";

function layOut(picture) {
  const g = new dagre.graphlib.Graph({ multigraph: true });
  g.setGraph({ nodesep: 26, edgesep: 16, ranksep: 44, marginx: 20, marginy: 20 });
  picture.boxes.forEach((box, k) => g.setNode(String(k), { width: box.width, height: box.height }));
  picture.edges.forEach((edge, k) =>
    g.setEdge(String(edge.from), String(edge.to),
      edge.label ? { width: edge.width, height: 14, labelpos: "c" } : {}, String(k)));
  dagre.layout(g);
  const nodes = picture.boxes.map((_, k) => g.node(String(k)));
  // dagre draws straight lines from the middle of a row to that of the next, through tall boxes at
  // the side. Here a line crosses a row upright and turns only between rows.
  const rows = new Map();
  for (const node of nodes) {
    const row = rows.get(node.rank) || { top: Infinity, bottom: -Infinity };
    row.top = Math.min(row.top, node.y - node.height / 2);
    row.bottom = Math.max(row.bottom, node.y + node.height / 2);
    rows.set(node.rank, row);
  }
  const all = [...rows.values()];
  for (const row of all) { row.top -= 8; row.bottom += 8; }
  const routes = picture.edges.map((edge, k) => {
    const made = g.edge({ v: String(edge.from), w: String(edge.to), name: String(k) });
    return { from: nodes[edge.from], to: nodes[edge.to], inner: made.points.slice(1, -1),
             label: edge.label ? [made.x, made.y] : null };
  });
  const spread = (end, other, side) => {
    for (const node of nodes) {
      const at = routes.filter((route) => route[end] === node);
      const towards = (route) => (route.inner.length ? route.inner.at(side) : route[other]).x;
      at.sort((a, b) => towards(a) - towards(b));
      const gap = Math.min(18, (node.width * 0.8) / Math.max(1, at.length - 1));
      at.forEach((route, k) => { route[end + "X"] = node.x + (k - (at.length - 1) / 2) * gap; });
    }
  };
  spread("from", "to", 0);
  spread("to", "from", -1);
  const lines = routes.map(({ from, to, inner, fromX, toX, label }) => {
    const points = [[fromX, from.y + from.height / 2], [fromX, rows.get(from.rank).bottom]];
    for (const { x, y } of inner) {
      const row = all.find((each) => each.top < y && y < each.bottom);
      if (row) points.push([x, row.top], [x, row.bottom]);
      else if (label) points.push([x, y]);  // between rows only a label needs a place
    }
    points.push([toX, rows.get(to.rank).top], [toX, to.y - to.height / 2]);
    return { points, label };
  });
  const at = nodes.map((node) => [node.x - node.width / 2, node.y - node.height / 2]);
  // dagre's size leaves arrows out that run outside all boxes.
  const margin = 20;
  const ends = nodes.flatMap(({ x, width }) => [x - width / 2, x + width / 2]);
  const xs = [...ends, ...lines.flatMap(({ points }) => points.map(([x]) => x))];
  const left = xs.reduce((a, b) => Math.min(a, b), Infinity) - margin;
  const right = xs.reduce((a, b) => Math.max(a, b), -Infinity) + margin;
  if (!nodes.length) return { width: 40, height: 40, lines, at };
  for (const point of [...at, ...lines.flatMap((each) => [...each.points, each.label || []])]) point[0] -= left;
  return { width: right - left, height: g.graph().height, lines, at };
}
