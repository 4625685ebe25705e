// The card "How it chose": two charts and a table, drawn when they are looked at.

import { alongTheRanking, byCalls } from "./charts.js";
import { decimal, element, find, number, offerTabs, plural } from "./dom.js";
import { title } from "./rows.js";

const VIEWS = { "Along the ranking": along, "Score by calls": curve, "All calls": table };

export class How {
  #view = Object.keys(VIEWS)[0];
  #shown = null; // what the views need

  constructor() {
    offerTabs(document.querySelector("#how .tabs"), find("view"), Object.keys(VIEWS), (view) => this.#draw(view));
    find("how").addEventListener("toggle", () => this.#draw());
    new ResizeObserver(() => this.#draw()).observe(find("how"));
  }

  // request: has the documents of a pool. comparison: null without a comparison.
  show(request, answer, comparison, calls) {
    const documents = new Map([...(request.pool ?? []), ...(comparison?.documents.values() ?? []), ...answer.documents].map((document) => [document.id, document]));
    this.#shown = { answer, comparison, calls, queries: request.queries, named: (id) => (documents.has(id) ? title(documents.get(id)) : id) };
    this.#draw();
  }

  #draw(view = this.#view) {
    this.#view = view;
    const width = Math.max(240, find("how").clientWidth - 40);
    if (this.#shown && find("how").open) find("view").replaceChildren(...VIEWS[view](this.#shown, width));
  }
}

const words = (text) => [element("p", { className: "hint" }, text)];

function along({ answer, calls, named }, width) {
  return answer.pool ? alongTheRanking(answer, calls, named, width) : words("The chart shows one query at a time.");
}

function curve({ answer, comparison }, width) {
  return comparison?.calls ? byCalls(answer, comparison, width) : words("There is nothing to compare here.");
}

function table({ answer, queries, named }) {
  const calls = answer.rounds.flatMap(({ round, calls }) => calls.map((call) => ({ ...call, round })));
  if (!calls.length) return words("Nothing was read.");
  const head = ["round", "document", "from", "score", "why", ...(queries ? ["query"] : [])];
  const rows = calls.map((call) => [call.round, named(call.id), number(call.retrieval_rank), decimal(call.score, 3), why(call, named), ...(queries ? [queries[call.query]] : [])]);
  const made = element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, String(cell)))))),
  );
  return [element("div", { className: "scrolled", tabIndex: 0, role: "region", "aria-label": plural(calls.length, "call") }, made)];
}

function why(call, named) {
  if (call.counterpart) return `in or out of the set was open between it and ${named(call.counterpart)}`;
  if (call.value !== null && call.value !== undefined) return "its score was expected to change most at the boundary";
  return "there was nothing to compare yet";
}
