// The pool on a plane, with the service's coordinates.

import { find, number, plural } from "./dom.js";
import { MarkChart } from "./chart.js";
import { drawWords } from "./marks.js";

export class MapChart {
  #chart;
  #places = null;
  #extent = null;
  #query = null;

  constructor(describe) {
    this.#chart = new MarkChart(find("map"), (colours) => this.#options(colours), {
      size: 4,
      shape: 1,
      describe,
      over: (plot, frame, colours) => this.#drawQuery(plot, colours),
    });
  }

  begin(map) {
    this.#chart.reset();
    this.#places = map && map.x.map((x, position) => ({ x, y: map.y[position] }));
    if (!map) return;
    this.#query = map.query;
    this.#extent = { x: extent([...map.x, map.query[0]]), y: extent([...map.y, map.query[1]]) };
  }

  show(frame) {
    const text = find("map-text");
    find("map").hidden = !this.#places;
    if (!this.#places) {
      text.textContent = "There is no map: the pool has no vectors, or too few documents.";
      text.classList.remove("hidden");
      return;
    }
    text.classList.add("hidden");
    const { x, y } = this.#extent;
    this.#chart.show([x, y], this.#places, frame);
    text.textContent =
      `Map of ${plural(this.#places.length, "candidate")}: ${number(frame.selected.size)} in the set, ` +
      `${plural(frame.calls.length, "call")} made so far.`;
  }

  #options(colours) {
    const axis = { stroke: colours.faint, grid: { stroke: colours.line, width: 1 }, ticks: { show: false }, values: (plot, splits) => splits.map(() => ""), size: 8 };
    const { x, y } = this.#extent;
    return {
      scales: { x: { time: false, range: () => x }, y: { range: () => y } },
      axes: [axis, axis],
      series: [{}, { paths: () => null, points: { show: false } }],
    };
  }

  #drawQuery(plot, colours) {
    const { ctx: context } = plot;
    const [x, y] = [plot.valToPos(this.#query[0], "x", true), plot.valToPos(this.#query[1], "y", true)];
    const arm = 9 * devicePixelRatio;
    context.strokeStyle = colours.boundary;
    context.lineWidth = 2 * devicePixelRatio;
    context.beginPath();
    for (const [dx, dy] of [[arm, 0], [0, arm]]) {
      context.moveTo(x - dx, y - dy);
      context.lineTo(x + dx, y + dy);
    }
    context.stroke();
    context.textAlign = x > plot.bbox.left + plot.bbox.width * 0.8 ? "right" : "left";
    drawWords(context, "query", x + (context.textAlign === "left" ? arm : -arm), y - arm * 0.7, colours);
  }
}

function extent(values) {
  const [least, most] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  const room = (most - least || 1) * 0.05;
  return [least - room, most + room];
}
