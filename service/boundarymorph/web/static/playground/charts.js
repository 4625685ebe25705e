// Charts as SVG, in the colours of the style sheet.

import { decimal, element, number, plural } from "./dom.js";

const STEPS = 16; // intervals of ranks, of growing length, over each of which the curve is averaged
const LEAST = 5; // the fewest documents of an interval
const POINTS = 60; // the most points of the curve of plain reranking
const MARGIN = { left: 44, right: 12, top: 10, bottom: 44 };

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The relevance of the candidates in search order, before and after reading, and what was read or chosen.
// title(id): what the marks are called. width: in pixels.
export function alongTheRanking(answer, calls, title, width) {
  const { pool, documents, pool_size: count } = answer;
  const asked = new Map(answer.rounds.flatMap(({ round, calls }) => calls.map((call) => [call.id, { ...call, round }])));
  const inside = new Set(documents.map(({ id }) => id));
  const marks = documents.map(({ id, retrieval_rank: rank, relevance, source, std }) =>
    source === "cross_encoder"
      ? { kind: "read", id, rank, relevance, words: `read${asked.has(id) ? ` in round ${asked.get(id).round}` : ""}, in the set` }
      : { kind: "estimated", id, rank, relevance, words: `± ${decimal(std)}, not read, in the set` });
  for (const { id, retrieval_rank: rank, score, round } of asked.values()) {
    if (!inside.has(id)) marks.unshift({ kind: "left-out", id, rank, relevance: pool.relevance[rank - 1] ?? score, words: `read in round ${round}, left out` });
  }
  const deepest = Math.max(10, pool.ids.length, ...marks.map(({ rank }) => rank));
  const place = plane(width, Math.round(Math.min(400, Math.max(240, width * 0.34))), (rank) => Math.log(rank) / Math.log(deepest * 1.1), (relevance) => relevance / 1.02);
  const unread = (values) => values.map((value, position) => (pool.std[position] === 0 ? null : value)); // those that were read have marks
  const within = stretches(pool.ids.length);
  const ranks = within.map(([first, end]) => Math.sqrt((first + 1) * end));
  const [mean, std] = [averages(unread(pool.relevance), within), averages(unread(pool.std), within)];
  const known = ranks.map((rank, i) => [rank, mean[i], std[i]]).filter(([, value]) => value !== null);
  const edge = (sign) => known.map(([rank, value, deviation]) => [rank, Math.min(1, Math.max(0, value + sign * deviation))]);
  const lowest = documents.length < count ? Math.min(...documents.map(({ relevance }) => relevance ?? Infinity)) : Infinity;
  const decades = [1, 10, 100, 1_000, 10_000].filter((rank) => rank <= deepest);
  const drawn = place.chart(decades.map((rank) => [rank, number(rank)]), [0, 0.2, 0.4, 0.6, 0.8, 1].map((share) => [share, String(share)]), "place in the search", "relevance");
  if (calls) drawn.append(svg("rect", { class: "seen", x: MARGIN.left, y: MARGIN.top, width: Math.max(0, place.x(Math.min(calls, count) + 0.5) - MARGIN.left), height: place.y(0) - MARGIN.top }));
  drawn.append(
    svg("path", { class: "band", d: `${place.path([...edge(1), ...edge(-1).reverse()])}Z` }),
    svg("path", { class: "line prior", d: place.path(ranks.map((rank, i) => [rank, averages(pool.first_relevance, within)[i]]).filter(([, value]) => value !== null)) }),
    svg("path", { class: "line posterior", d: place.path(known) }),
  );
  if (Number.isFinite(lowest)) {
    drawn.append(
      svg("path", { class: "line boundary", d: `M${MARGIN.left} ${place.y(lowest)}H${width - MARGIN.right}` }),
      svg("text", { class: "boundary", x: width - MARGIN.right - 4, y: place.y(lowest) - 6, "text-anchor": "end" }, `boundary ${decimal(lowest)}`),
    );
  }
  drawn.append(...marks.filter(({ relevance }) => relevance !== null).map(({ kind, id, rank, relevance, words }) => {
    const shape = mark(kind, place.x(rank), place.y(relevance));
    shape.append(svg("title", {}, `${title(id)}\nfrom ${number(rank)} · ${decimal(relevance)} ${words}`));
    return shape;
  }));
  const legend = [["read", "read, in the set"], ["estimated", "estimated, in the set"], ["left-out", "read, left out"], ["posterior", "average of the unread, ± 1 deviation"], ["prior", "average before reading"], ["seen", "what plain reranking sees"]];
  const described = `Chart of the relevance of ${plural(count, "candidate")} in search order, after ${plural(asked.size, "call")}. The lists of documents and the table of calls say the same in words.`;
  return [figure(drawn, described, legend), element("p", { className: "hint" }, "The set is on or above the boundary, its lowest relevance. A candidate above it is left out only for one that is nearly as relevant and earlier in the search, or of the same group.")];
}

// The total score of the set by the number of calls, beside that of plain reranking.
export function byCalls(answer, comparison, width) {
  let made = 0;
  const before = answer.rounds.map(({ ids, calls }) => [(made += calls.length) - calls.length, comparison.sum(ids ?? [])]);
  const ours = [...before, [made, comparison.sum(comparison.ours)]];
  const step = Math.max(1, Math.ceil(comparison.calls / POINTS));
  const counts = [...Array(Math.ceil(comparison.calls / step)).keys()].map((i) => i * step);
  const plain = [...counts, comparison.calls].map((calls) => [calls, comparison.sum(comparison.plainSet(calls))]);
  const most = Math.max(...[...ours, ...plain].map(([, sum]) => sum), 0.1) * 1.05;
  const place = plane(width, 260, (calls) => calls / Math.max(comparison.calls, 1), (sum) => sum / most);
  const ticks = (end, parts) => [...Array(parts + 1).keys()].map((i) => (end / parts) * i);
  const drawn = place.chart(ticks(comparison.calls, Math.min(5, comparison.calls || 1)).map((calls) => [calls, number(Math.round(calls))]), ticks(most / 1.05, 4).map((sum) => [sum, decimal(sum, 1)]), "scores spent", "total score");
  drawn.append(svg("path", { class: "line plain", d: place.path(plain) }), svg("path", { class: "line ours", d: place.path(ours) }));
  const described = `${plural(comparison.calls, "score")}: ${decimal(ours.at(-1)[1], 1)} with BoundaryMORPH, ${decimal(plain.at(-1)[1], 1)} with plain reranking.`;
  return [figure(drawn, described, [["ours", "BoundaryMORPH"], ["plain", "plain reranking"]]), element("p", { className: "hint" }, `${described} In earlier sets, documents that nobody has read count as they are estimated.`)];
}

function figure(drawn, described, legend) {
  drawn.setAttribute("role", "img");
  drawn.setAttribute("aria-label", described);
  const items = legend.map(([kind, words]) => element("li", {}, sample(kind), words));
  return element("div", { className: "chart" }, drawn, element("ul", { className: "legend", "aria-label": "Legend" }, ...items));
}

// What a line or a mark looks like.
function sample(kind) {
  const shown = svg("svg", { width: 22, height: 14, "aria-hidden": "true" });
  if (["read", "estimated", "left-out"].includes(kind)) shown.append(mark(kind, 11, 7));
  else if (kind === "seen") shown.append(svg("rect", { class: "seen framed", x: 1, y: 1, width: 20, height: 12 }));
  else shown.append(svg("path", { class: `line ${kind}`, d: "M0 7H22" }));
  return shown;
}

// Marks differ in shape as well as in colour: disc, ring, cross.
function mark(kind, x, y) {
  if (kind === "left-out") return svg("path", { class: "mark left-out", d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6` });
  return svg("circle", { class: `mark ${kind}`, cx: x, cy: y, r: 4 });
}

// A rectangle of pixels, of which across(x) and up(y) say the share of the width and of the height.
function plane(width, height, across, up) {
  const x = (value) => MARGIN.left + across(value) * (width - MARGIN.left - MARGIN.right);
  const y = (value) => height - MARGIN.bottom - up(value) * (height - MARGIN.top - MARGIN.bottom);
  const path = (points) => points.map(([at, value], i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const chart = (columns, lines, under, beside) =>
    svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height },
      ...columns.map(([at]) => svg("path", { class: "grid", d: `M${x(at)} ${MARGIN.top}V${height - MARGIN.bottom}` })),
      ...lines.map(([at]) => svg("path", { class: "grid", d: `M${MARGIN.left} ${y(at)}H${width - MARGIN.right}` })),
      ...columns.map(([at, words]) => svg("text", { x: x(at), y: height - MARGIN.bottom + 16, "text-anchor": "middle" }, words)),
      ...lines.map(([at, words]) => svg("text", { x: MARGIN.left - 8, y: y(at) + 4, "text-anchor": "end" }, words)),
      svg("text", { x: (MARGIN.left + width) / 2, y: height - 8, "text-anchor": "middle" }, under),
      svg("text", { x: MARGIN.left + 6, y: MARGIN.top + 12 }, beside),
    );
  return { x, y, path, chart };
}

// Positions [first, end) of the intervals; the last one may be shorter.
function stretches(count) {
  const edges = [0];
  for (let step = 1; step <= STEPS; step += 1) {
    const edge = Math.round(count ** (step / STEPS));
    if (edge >= edges.at(-1) + LEAST) edges.push(edge);
  }
  if (edges.at(-1) < count) edges.push(count);
  return edges.slice(1).map((end, i) => [edges[i], end]);
}

function averages(values, within) {
  return within.map(([first, end]) => {
    const known = values.slice(first, end).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  });
}
