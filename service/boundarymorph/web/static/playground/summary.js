// The result of the request: one line, and the warnings.

import { decimal, element, find, number, plural, shortened } from "./dom.js";

const STATUS = {
  complete: ["good", "Complete"],
  partial: ["bad", "Partial: as far as it came"],
  retrieval_only: ["bad", "Retrieval only: nothing was scored"],
};
const STOPPED = {
  budget: "the budget is spent",
  settled: "little is expected to be lost",
  found: "enough is believed to be found",
  pool_exhausted: "everything is scored",
  nothing_to_decide: "there was nothing to decide",
  deadline: "the deadline came",
  overloaded: "the service is busy",
  encoder_unavailable: "the encoder cannot be reached",
  encoder_failed: "the encoder failed",
  retriever_unavailable: "the retriever cannot be reached",
  retriever_failed: "the retriever failed",
  scorer_unavailable: "the scorer cannot be reached",
  scorer_failed: "the scorer failed",
};

// queries: of the request, if there are several.
export function showSummary(answer, queries) {
  const { documents, usage, pool_size: count } = answer;
  const scored = documents.filter(({ source }) => source === "cross_encoder").length;
  const deep = documents.filter(({ retrieval_rank: rank }) => rank > documents.length);
  const deepest = Math.max(0, ...deep.map(({ retrieval_rank: rank }) => rank));
  const sum = documents.reduce((total, { relevance }) => total + (relevance ?? 0), 0);
  const calls = usage.cross_encoder_calls + usage.cached_scores;
  find("headline").textContent = `${plural(documents.length, "document")} with a total relevance of ${decimal(sum, 1)}`;
  find("outcome").textContent =
    sources(scored, documents.length - scored, calls) +
    (deep.length ? `; ${number(deep.length)} from below rank ${number(documents.length)}, the deepest from ${number(deepest)}` : "") +
    `. ${missed(answer)}` +
    (queries ? ` They answer best: ${queries.map((query, i) => `“${shortened(query)}” ${number(documents.filter((one) => one.query === i).length)}`).join(", ")}.` : "");
  const [kind, words] = STATUS[answer.status] ?? ["bad", answer.status];
  const cached = usage.cached_scores ? ` (${number(usage.cached_scores)} from the cache)` : "";
  find("status").replaceChildren(
    element("span", { className: `badge ${kind}` }, words),
    ` ${number(calls)} of ${plural(usage.budget, "call")}${cached} in ${plural(usage.rounds, "round")} among ${plural(count, "candidate")}, in ${decimal(answer.timings_ms.total / 1000, 1)} s. ` +
      `It ended because ${STOPPED[answer.stop_reason] ?? answer.stop_reason}${tokens(usage.language_model)}.`,
  );
  if (calls > 1 && calls < count) {
    find("pitch").textContent =
      `A reranker that can afford ${number(calls)} scores usually spends them on the first ${number(calls)} search results. ` +
      `BoundaryMORPH spends them anywhere in ${number(count)}. Below is what that changes for your query.`;
  }
  find("warnings").replaceChildren(...answer.warnings.map((warning) => element("p", { className: "note warn" }, element("b", {}, "Note "), warning.message)));
}

// The headline once it is known what plain reranking makes of the same calls.
export function showOutcome(comparison, calls) {
  const { ours, plain, onlyOurs } = comparison;
  const [sum, against] = [comparison.sum(ours), comparison.sum(plain)];
  const other = calls ? "plain reranking" : "the search alone";
  const count = plural(ours.length, "document");
  find("headline").textContent = onlyOurs.length
    ? `${number(onlyOurs.length)} of ${count} ${onlyOurs.length === 1 ? "is" : "are"} different from ${other}${more(sum, against)}: a total relevance of ${decimal(sum, 1)} against ${decimal(against, 1)}`
    : `The same ${count} as ${other}, with a total relevance of ${decimal(sum, 1)}`;
}

function more(sum, against) {
  const change = Math.round(100 * (sum / against - 1));
  return against < 0.1 || !change ? "" : `, and the set is ${number(Math.abs(change))}\u00a0% ${change > 0 ? "more" : "less"} relevant`;
}

// scored, estimated: documents of the set.
function sources(scored, estimated, calls) {
  const why = calls ? "chosen because of what similar documents scored" : "estimated from the search";
  return [scored || !estimated ? `${number(scored)} read by the scorer` : "", estimated ? `${number(estimated)} ${why}` : ""].filter(Boolean).join(", ");
}

// What scoring all candidates is expected to add.
function missed({ expected_loss: loss, pool_size: count, status }) {
  if (status === "retrieval_only") return `What scoring all ${number(count)} would add is not known.`;
  const gain = Math.round((100 * loss) / (1 - Math.min(loss, 0.999)));
  if (!loss) return `Scoring all ${number(count)} would add nothing.`;
  return `Scoring all ${number(count)} would add ${gain ? `about ${number(gain)}` : "less than 1"}\u00a0%.`;
}

// The tokens of a language model as the scorer.
function tokens(usage) {
  if (!usage) return "";
  return `. The language model read ${plural(usage.input_tokens, "token")} and wrote ${number(usage.output_tokens)}`;
}

export function showProblem(problem) {
  if (!problem) {
    find("problem").replaceChildren();
    return;
  }
  const errors = problem.errors?.length > 1 ? problem.errors.map(({ field, message }) => element("li", {}, `${field}: ${message}`)) : [];
  const hints = [
    problem.retryAfter ? `Try again in ${problem.retryAfter} s.` : "",
    problem.requestId ? `Request id: ${problem.requestId}` : "",
  ].filter(Boolean);
  find("problem").replaceChildren(
    element(
      "div",
      { className: "note bad" },
      element("b", {}, problem.title ?? "This page has failed"),
      element("p", {}, problem.message),
      errors.length ? element("ul", {}, ...errors) : null,
      hints.length ? element("p", { className: "hint" }, hints.join(" ")) : null,
    ),
  );
}
