// Expected relevance along the ranking before and after scoring, averaged over neighbouring ranks, and the documents.

import { decimal, find, number, plural } from "./dom.js";
import { MarkChart } from "./chart.js";
import { drawWords } from "./marks.js";

const STEPS = 16; // intervals of ranks that are averaged, of growing length,
const LEAST = 5; // and of so many documents at least

export class RankingChart {
  #chart;
  #prior = null;
  #stretches = [];
  #budget = 0;

  constructor(describe) {
    this.#chart = new MarkChart(find("ranking"), (colours) => this.#options(colours), {
      size: 4,
      shape: 0.36,
      describe,
      underneath: (plot, frame, colours) => this.#underneath(plot, frame, colours),
      over: (plot, frame, colours) => this.#nameBoundary(plot, frame, colours),
    });
  }

  // prior: the frame before the first call. budget: how many documents plain reranking sees.
  begin(prior, budget) {
    this.#budget = Math.min(budget, prior.relevance.length);
    this.#stretches = stretches(prior.relevance.length);
    this.#prior = averages(prior.relevance, this.#stretches);
    this.#chart.reset();
  }

  show(frame) {
    // Scored documents are marks of their own: in the line they would be spikes.
    const open = (values) => values.map((value, position) => (frame.isScored(position) ? null : value));
    const mean = averages(open(frame.relevance), this.#stretches);
    const std = averages(open(frame.std), this.#stretches);
    const band = (sign) => mean.map((value, i) => (value === null ? null : Math.min(1, Math.max(0, value + sign * std[i]))));
    const ranks = this.#stretches.map(([from, to]) => Math.sqrt((from + 1) * to));
    const marked = frame.relevance.map((y, position) => (frame.kind(position) === "unasked" || y === null ? null : { x: position + 1, y }));
    this.#chart.show([ranks, this.#prior, band(1), band(-1), mean], marked, frame);
    const { boundary } = frame;
    const inside = [...frame.selected].filter((position) => position >= frame.selected.size).length;
    find("ranking-text").textContent =
      `Chart of relevance from 0 to 1 over ${plural(frame.relevance.length, "candidate")} in retrieval order, after ` +
      `${plural(frame.calls.length, "call")}. ${number(frame.selected.size)} are in the set` +
      `${boundary === null ? "" : `, at a relevance of ${decimal(boundary)} or more`}, ${number(inside)} of them from below rank ${number(frame.selected.size)}. ` +
      "The list of the set and the table of all calls below say the same in words.";
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

  #underneath(plot, frame, colours) {
    const { ctx: context, bbox } = plot;
    if (this.#budget) {
      context.fillStyle = colours.seen;
      context.fillRect(bbox.left, bbox.top, plot.valToPos(this.#budget + 0.5, "x", true) - bbox.left, bbox.height);
    }
    if (frame.boundary === null) return;
    const y = plot.valToPos(frame.boundary, "y", true);
    context.strokeStyle = colours.boundary;
    context.lineWidth = 1.5 * devicePixelRatio;
    context.setLineDash([8 * devicePixelRatio, 4 * devicePixelRatio]);
    context.beginPath();
    context.moveTo(bbox.left, y);
    context.lineTo(bbox.left + bbox.width, y);
    context.stroke();
    context.setLineDash([]);
  }

  #nameBoundary(plot, frame, colours) {
    if (frame.boundary === null) return;
    const { ctx: context, bbox } = plot;
    const [x, y] = [bbox.left + bbox.width - 6 * devicePixelRatio, plot.valToPos(frame.boundary, "y", true) - 6 * devicePixelRatio];
    context.textAlign = "right";
    drawWords(context, `boundary ${decimal(frame.boundary)}`, x, y, colours);
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
