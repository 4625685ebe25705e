// The base of both charts: uPlot's axes and scales, marks drawn over them, and a note at the pointer.

import { element } from "./dom.js";
import { KINDS, drawHalo, drawMark, palette } from "./marks.js";

const NEAR = 14; // pixels within which the pointer selects a mark

export class MarkChart {
  #holder;
  #note = element("div", { className: "note-at", hidden: true });
  #plot = null;
  #shown = null;
  #size;
  #shape;

  // options(colours): uPlot's, without a size; size: of marks, in pixels; shape: height by width; describe(position): what the note says.
  constructor(holder, options, { size, shape, describe, underneath = () => {}, over = () => {} }) {
    this.#holder = holder;
    this.#size = size;
    this.#shape = shape;
    this.options = options;
    this.describe = describe;
    this.underneath = underneath;
    this.over = over;
    new ResizeObserver(() => this.#fit()).observe(holder);
    holder.addEventListener("pointerdown", (event) => this.#point(event)); // a touch does not move first
    holder.addEventListener("pointermove", (event) => this.#point(event));
    // A finger leaves when it is lifted: what it has pointed at stays until the next touch.
    holder.addEventListener("pointerleave", ({ pointerType }) => pointerType !== "touch" && this.#forget());
    addEventListener("pointerdown", ({ target }) => holder.contains(target) || this.#forget());
  }

  // data: uPlot's; places: of each candidate {x, y}, in the units of the axes; frame: as of `selection.js`.
  show(data, places, frame) {
    this.#shown = { places, frame };
    if (this.#plot) this.#plot.setData(data);
    else this.#build(data);
  }

  // Removes the chart, so that it is built again with new colours or scales.
  reset() {
    this.#plot?.destroy();
    this.#plot = null;
    this.#forget();
  }

  #build(data) {
    this.colours = palette();
    const options = { ...this.options(this.colours), ...this.#dimensions(), legend: { show: false }, hooks: { draw: [(plot) => this.#draw(plot)] } };
    options.cursor = { show: false };
    this.#plot = new uPlot(options, data, this.#holder);
    this.#holder.append(this.#note);
  }

  #dimensions() {
    const width = Math.max(240, this.#holder.clientWidth);
    return { width, height: Math.round(Math.min(520, Math.max(240, width * this.#shape))) };
  }

  #fit() {
    this.#plot?.setSize(this.#dimensions());
  }

  #draw(plot) {
    const { places, frame } = this.#shown;
    const { ctx: context, bbox } = plot;
    const size = this.#size * devicePixelRatio;
    const dot = places.length > 1000 ? 0.3 : 0.6; // many marks form a cloud
    context.save();
    context.beginPath();
    context.rect(bbox.left, bbox.top - 3 * size, bbox.width, bbox.height + 6 * size);
    context.clip();
    this.underneath(plot, frame, this.colours);
    const byKind = new Map(KINDS.map((kind) => [kind, []]));
    places.forEach((place, position) => place && byKind.get(frame.kind(position)).push(position));
    for (const [kind, positions] of byKind) {
      for (const position of positions) {
        const x = plot.valToPos(places[position].x, "x", true);
        const y = plot.valToPos(places[position].y, "y", true);
        drawMark(context, kind, x, y, kind === "unasked" ? size * dot : size, this.colours);
        if (frame.latest.has(position)) drawHalo(context, x, y, size, this.colours);
      }
    }
    this.over(plot, frame, this.colours);
    context.restore();
  }

  #forget() {
    this.#note.hidden = true;
  }

  #point(event) {
    if (!this.#plot) return;
    const { places, frame } = this.#shown;
    const over = this.#plot.over.getBoundingClientRect();
    const [left, top] = [event.clientX - over.left, event.clientY - over.top];
    let nearest = null;
    let least = NEAR ** 2;
    places.forEach((place, position) => {
      if (!place) return;
      const distance = (this.#plot.valToPos(place.x, "x") - left) ** 2 + (this.#plot.valToPos(place.y, "y") - top) ** 2;
      const weighed = frame.kind(position) === "unasked" ? distance * 9 + 1 : distance;
      if (weighed < least) [nearest, least] = [position, weighed];
    });
    this.#note.hidden = nearest === null;
    if (nearest === null) return;
    this.#note.textContent = this.describe(nearest, frame);
    const holder = this.#holder.getBoundingClientRect();
    const x = event.clientX - holder.left;
    this.#note.style.left = `${Math.min(x + 12, holder.width - this.#note.offsetWidth - 4)}px`;
    this.#note.style.top = `${event.clientY - holder.top + 14}px`;
  }
}
