// What plain reranking returns for the same budget: the retriever's first B by their scores, then the rest of the first
// k in the retriever's order.

import { decimal, element, find, number, plural } from "./dom.js";
import { row, tag } from "./documents.js";

// Scores of the first B documents as plain reranking makes them, and the rest of the first k. ids: in retrieval order.
export async function rerankPlainly(service, request, ids, signal) {
  const { query, index, reuse } = request;
  const count = ids.length;
  const [first, returned] = [Math.min(request.budget, count), Math.min(request.k, count)];
  const byId = new Map((request.pool ?? []).map((document) => [document.id, document]));
  const head = (depth) => (index === undefined ? { ranked: true, pool: ids.slice(0, depth).map((id) => bare(byId.get(id))) } : { index, depth, filter: request.filter, hybrid: request.hybrid });
  const ask = async (depth, budget) =>
    depth ? (await service.selection({ query, ...head(depth), budget, k: depth, reuse, distinct: false, calibration: false, relevance: "scorer", return_documents: true }, signal)).documents : [];
  const [scored, unseen] = await Promise.all([ask(first, first), ask(returned > first ? returned : 0, 0)]);
  return { scored, unseen };
}

function bare({ id, text, title }) {
  return { id, text, title };
}

export class Comparison {
  #ids;
  #scores; // of the cross-encoder, by which plain reranking orders what it has scored

  // scored: the documents of the answer to `plainRequest`; none if the budget is 0.
  constructor(answer, scored) {
    const { ids, relevance } = answer.pool;
    this.believed = new Map(ids.map((id, position) => [id, relevance[position] ?? 0]));
    const onlyScores = answer.relevance === "scorer" && answer.calibration === null; // else a score is no relevance
    for (const { id, cross_encoder_score: score } of onlyScores ? scored : []) {
      if (score !== null) this.believed.set(id, score);
    }
    this.#scores = new Map(scored.map(({ id, cross_encoder_score: score }) => [id, score ?? 0]));
    const reranked = this.#byScore(scored.map(({ id }) => id));
    const seen = new Set(reranked);
    this.plain = [...reranked, ...ids.filter((id) => !seen.has(id))].slice(0, answer.documents.length);
    this.ours = answer.documents.map(({ id }) => id);
    this.scored = new Set(scored.filter(({ source }) => source === "cross_encoder").map(({ id }) => id));
    this.ranks = new Map(ids.map((id, position) => [id, position + 1]));
    this.#ids = ids;
  }

  get onlyOurs() {
    const plain = new Set(this.plain);
    return this.ours.filter((id) => !plain.has(id));
  }

  get onlyPlain() {
    const ours = new Set(this.ours);
    return this.plain.filter((id) => !ours.has(id));
  }

  sum(ids) {
    return ids.reduce((total, id) => total + (this.believed.get(id) ?? 0), 0);
  }

  bestFirst(ids) {
    return ids.toSorted((a, b) => (this.believed.get(b) ?? 0) - (this.believed.get(a) ?? 0));
  }

  // Of what plain reranking returns for so many calls.
  plainSum(calls) {
    return this.sum([...this.#byScore(this.#ids.slice(0, calls)), ...this.#ids.slice(calls)].slice(0, this.ours.length));
  }

  #byScore(ids) {
    return ids.toSorted((a, b) => (this.#scores.get(b) ?? 0) - (this.#scores.get(a) ?? 0));
  }
}

// calls: as many as each has made.
export function showComparison(comparison, calls, texts) {
  const { ours, plain, onlyOurs, onlyPlain } = comparison;
  find("comparison-title").textContent = calls
    ? `The same ${calls === 1 ? "score" : `${number(calls)} scores`}, spent on the first ${calls === 1 ? "search result" : number(calls)}`
    : `The first ${plural(plain.length, "search result")}`;
  const sums = [comparison.sum(ours), comparison.sum(plain)];
  const most = Math.max(...sums, 1e-9);
  const bars = [["BoundaryMORPH", sums[0], "ours"], ["plain reranking", sums[1], "plain"]].map(([name, sum, kind]) => {
    const bar = element("span", { className: `total ${kind}`, "aria-hidden": "true" });
    bar.style.setProperty("--share", sum / most);
    return element("div", { className: "totals" }, element("span", {}, name), bar, element("b", {}, decimal(sum, 1)));
  });
  const common = ours.length - onlyOurs.length;
  const verdict = onlyOurs.length ? `${plural(common, "document")} of ${ours.length} in both; ${onlyOurs.length} differ.` : `Both return the same ${plural(common, "document")}.`;
  find("compared").replaceChildren(
    element("p", { className: "verdict" }, verdict),
    ...bars,
    element("p", { className: "hint" }, "Total relevance. Both sums use the same estimates."),
  );
  find("differing").hidden = !onlyOurs.length;
  find("differing").lastElementChild.replaceChildren(
    list("Only with BoundaryMORPH", onlyOurs, comparison, texts),
    list("Only with plain reranking", onlyPlain, comparison, texts),
  );
}

// If calls cost money, the comparison runs only at the press of a button.
export function offerComparison(calls, onWanted) {
  const button = element("button", { type: "button", className: "plain" }, `Rerank, for ${plural(calls, "call")} more at most`);
  button.addEventListener("click", () => {
    find("compared").focus(); // the button goes
    onWanted();
  });
  find("compared").replaceChildren(button);
}

export function showNoComparison(words) {
  find("differing").hidden = true;
  find("compared").replaceChildren(element("p", { className: "hint" }, words));
}

function list(title, ids, comparison, texts) {
  const rows = comparison.bestFirst(ids).map((id) => {
    const rank = comparison.ranks.get(id);
    const scored = comparison.scored.has(id);
    const facts = [tag(`rank ${rank}`, "rank")];
    return row(id, comparison.believed.get(id), facts, scored ? "Plain reranking scored it." : "Plain reranking did not score it.", texts);
  });
  return element("details", { className: "only", open: true }, element("summary", {}, `${title} (${ids.length})`), element("ol", { className: "documents" }, ...rows));
}
