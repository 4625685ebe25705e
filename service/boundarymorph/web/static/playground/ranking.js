// Expected relevance along the ranking before and after scoring, averaged over neighbouring ranks, and the documents.

import { decimal, element, find, number, plural } from "./dom.js";
import { KINDS, drawMark, drawWords, palette } from "./marks.js";

const STEPS = 16; // intervals of ranks that are averaged, of growing length,
const LEAST = 5; // and of so many documents at least
const SIZE = 4; // pixels of a mark
const SHAPE = 0.36; // height by width
const NEAR = 14; // pixels within which the pointer selects a mark

export class RankingChart {
  #holder = find("ranking");
  #note = element("div", { className: "note-at", hidden: true });
  #plot = null;
  #places = []; // of each candidate {x, y}, in the units of the axes; null if it has no mark
  #selection;
  #budget;
  #describe;

  // describe(position): what the note at the pointer says.
  constructor(describe) {
    this.#describe = describe;
    new ResizeObserver(() => this.#plot?.setSize(this.#dimensions())).observe(this.#holder);
    this.#holder.addEventListener("pointerdown", (event) => this.#point(event)); // a touch does not move first
    this.#holder.addEventListener("pointermove", (event) => this.#point(event));
    // A finger leaves when it is lifted: what it has pointed at stays until the next touch.
    this.#holder.addEventListener("pointerleave", ({ pointerType }) => pointerType !== "touch" && this.#forget());
    addEventListener("pointerdown", ({ target }) => this.#holder.contains(target) || this.#forget());
  }

  // budget: how many documents plain reranking sees.
  show(selection, budget) {
    this.#selection = selection;
    this.#budget = Math.min(budget, selection.relevance.length);
    const within = stretches(selection.relevance.length);
    // Scored documents are marks of their own: in the line they would be spikes.
    const open = (values) => values.map((value, position) => (selection.isScored(position) ? null : value));
    const mean = averages(open(selection.relevance), within);
    const std = averages(open(selection.std), within);
    const band = (sign) => mean.map((value, i) => (value === null ? null : Math.min(1, Math.max(0, value + sign * std[i]))));
    const ranks = within.map(([from, to]) => Math.sqrt((from + 1) * to));
    this.#places = selection.relevance.map((y, position) => (selection.kind(position) === null || y === null ? null : { x: position + 1, y }));
    this.#build([ranks, averages(selection.prior, within), band(1), band(-1), mean]);
    const { boundary, selected } = selection;
    const inside = [...selected].filter((position) => position >= selected.size).length;
    find("ranking-text").textContent =
      `Chart of relevance from 0 to 1 over ${plural(selection.relevance.length, "candidate")} in retrieval order, after ` +
      `${plural(selection.calls.length, "call")}. ${number(selected.size)} are in the set` +
      `${boundary === null ? "" : `, at a relevance of ${decimal(boundary)} or more`}, ${number(inside)} of them from below rank ${number(selected.size)}. ` +
      "The list of the set and the table of all calls below say the same in words.";
  }

  #build(data) {
    this.#plot?.destroy();
    this.#forget();
    const colours = palette();
    const drawn = { legend: { show: false }, cursor: { show: false }, hooks: { draw: [(plot) => this.#draw(plot, colours)] } };
    this.#plot = new uPlot({ ...this.#options(colours), ...this.#dimensions(), ...drawn }, data, this.#holder);
    this.#holder.append(this.#note);
  }

  #dimensions() {
    const width = Math.max(240, this.#holder.clientWidth);
    return { width, height: Math.round(Math.min(520, Math.max(240, width * SHAPE))) };
  }

  #options(colours) {
    const axis = { stroke: colours.faint, grid: { stroke: colours.line, width: 1 }, ticks: { show: false }, font: "12px system-ui", labelFont: "12px system-ui", labelSize: 18, size: 30 };
    const line = (stroke, width, dash) => ({ stroke, width, dash, points: { show: false }, spanGaps: true, paths: uPlot.paths.spline() });
    return {
      scales: { x: { time: false, distr: 3, range: (plot, min, max) => [0.9, Math.max(10, max * 1.1)] }, y: { range: [0, 1.02] } },
      axes: [
        { ...axis, label: "retrieval rank", values: (plot, splits) => splits.map((rank) => (rank >= 1 && Number.isInteger(Math.log10(rank)) ? number(rank) : "")) },
        { ...axis, label: "relevance", size: 42 },
      ],
      series: [{}, line(colours.prior, 1.5, [2, 4]), line(colours.band, 0), line(colours.band, 0), line(colours.posterior, 1.6)],
      bands: [{ series: [2, 3], fill: colours.band }],
    };
  }

  #draw(plot, colours) {
    const { ctx: context, bbox } = plot;
    const size = SIZE * devicePixelRatio;
    context.save();
    context.beginPath();
    context.rect(bbox.left, bbox.top - 3 * size, bbox.width, bbox.height + 6 * size);
    context.clip();
    this.#drawUnderneath(plot, colours);
    const byKind = new Map(KINDS.map((kind) => [kind, []]));
    this.#places.forEach((place, position) => place && byKind.get(this.#selection.kind(position)).push(place));
    for (const [kind, places] of byKind) {
      for (const { x, y } of places) drawMark(context, kind, plot.valToPos(x, "x", true), plot.valToPos(y, "y", true), size, colours);
    }
    this.#nameBoundary(plot, colours);
    context.restore();
  }

  #drawUnderneath(plot, colours) {
    const { ctx: context, bbox } = plot;
    if (this.#budget) {
      context.fillStyle = colours.seen;
      context.fillRect(bbox.left, bbox.top, plot.valToPos(this.#budget + 0.5, "x", true) - bbox.left, bbox.height);
    }
    const { boundary } = this.#selection;
    if (boundary === null) return;
    const y = plot.valToPos(boundary, "y", true);
    context.strokeStyle = colours.boundary;
    context.lineWidth = 1.5 * devicePixelRatio;
    context.setLineDash([8 * devicePixelRatio, 4 * devicePixelRatio]);
    context.beginPath();
    context.moveTo(bbox.left, y);
    context.lineTo(bbox.left + bbox.width, y);
    context.stroke();
    context.setLineDash([]);
  }

  #nameBoundary(plot, colours) {
    const { boundary } = this.#selection;
    if (boundary === null) return;
    const { ctx: context, bbox } = plot;
    const [x, y] = [bbox.left + bbox.width - 6 * devicePixelRatio, plot.valToPos(boundary, "y", true) - 6 * devicePixelRatio];
    context.textAlign = "right";
    drawWords(context, `boundary ${decimal(boundary)}`, x, y, colours);
  }

  #forget() {
    this.#note.hidden = true;
  }

  #point(event) {
    if (!this.#plot) return;
    const over = this.#plot.over.getBoundingClientRect();
    const [left, top] = [event.clientX - over.left, event.clientY - over.top];
    let nearest = null;
    let least = NEAR ** 2;
    this.#places.forEach((place, position) => {
      if (!place) return;
      const distance = (this.#plot.valToPos(place.x, "x") - left) ** 2 + (this.#plot.valToPos(place.y, "y") - top) ** 2;
      if (distance < least) [nearest, least] = [position, distance];
    });
    this.#note.hidden = nearest === null;
    if (nearest === null) return;
    this.#note.textContent = this.#describe(nearest);
    const holder = this.#holder.getBoundingClientRect();
    const x = event.clientX - holder.left;
    this.#note.style.left = `${Math.min(x + 12, holder.width - this.#note.offsetWidth - 4)}px`;
    this.#note.style.top = `${event.clientY - holder.top + 14}px`;
  }
}

// Positions [from, to) of the intervals; the last one may be shorter.
function stretches(count) {
  const edges = [0];
  for (let step = 1; step <= STEPS; step += 1) {
    const edge = Math.round(count ** (step / STEPS));
    if (edge >= edges.at(-1) + LEAST) edges.push(edge);
  }
  if (edges.at(-1) < count) edges.push(count);
  return edges.slice(1).map((to, i) => [edges[i], to]);
}

function averages(values, within) {
  return within.map(([from, to]) => {
    const known = values.slice(from, to).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  });
}
