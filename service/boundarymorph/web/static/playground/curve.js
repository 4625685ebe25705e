// What each number of calls would have brought: the relevance of the set beside plain reranking's.

import { decimal, find, plural } from "./dom.js";
import { palette } from "./marks.js";

const POINTS = 60; // at most, of plain reranking

let plot = null;

// sets: pairs of calls and ids; comparison: of the whole budget, by whose knowledge every set is judged.
export function showCurve(sets, comparison) {
  const ours = sets.map(([calls, ids]) => [calls, comparison.sum(ids)]);
  const most = comparison.scored.size;
  const step = Math.max(1, Math.ceil(most / POINTS));
  const counts = [...Array(Math.floor(most / step) + 1).keys()].map((i) => i * step);
  if (counts.at(-1) !== most) counts.push(most);
  const plain = new Map(counts.map((calls) => [calls, comparison.plainSum(calls)]));
  find("curve").hidden = sets.length < 2 || most < 2;
  if (find("curve").hidden) return;
  const byCalls = new Map(ours);
  const calls = [...new Set([...byCalls.keys(), ...counts])].sort((a, b) => a - b);
  draw([calls, calls.map((count) => byCalls.get(count)), calls.map((count) => plain.get(count))]);
  const [, last] = ours.at(-1);
  find("curve-text").textContent =
    `${plural(most, "call")}: ${decimal(last, 1)} with BoundaryMORPH, ${decimal(plain.get(most), 1)} with plain reranking` +
    (most <= comparison.ours.length ? ", which can only reorder what it returns anyway." : ".");
}

export function hideCurve() {
  find("curve").hidden = true;
}

function draw(data) {
  const colours = palette();
  const holder = find("curve-chart");
  plot?.destroy();
  const axis = { stroke: colours.faint, grid: { stroke: colours.line, width: 1 }, ticks: { show: false }, font: "12px system-ui", labelFont: "12px system-ui", labelSize: 18, size: 34 };
  const line = (label, stroke, dash) => ({ label, stroke, dash, width: 2, spanGaps: true, points: { show: false } });
  plot = new uPlot(
    {
      width: Math.max(240, holder.clientWidth),
      height: 200,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false }, y: { range: (plot, least, most) => [0, most * 1.05 || 1] } },
      axes: [{ ...axis, label: "calls" }, { ...axis, size: 46 }],
      series: [{}, line("BoundaryMORPH", colours["scored-in"]), line("plain reranking", colours["scored-out"], [6, 4])],
    },
    data,
    holder,
  );
}
