// The result of the request: one line, and the warnings.

import { decimal, element, find, number, plural, shortened } from "./dom.js";

const STATUS = {
  complete: [true, "Complete"],
  partial: [false, "Partial: as far as it came"],
  retrieval_only: [false, "Search only: nothing was scored"],
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

// comparison: null without a comparison. queries: the queries of the request.
export function showSummary(answer, comparison, queries) {
  const { documents, usage, pool_size: count } = answer;
  const read = documents.filter(({ source }) => source === "cross_encoder").length;
  const sum = documents.reduce((total, { relevance }) => total + (relevance ?? 0), 0);
  const calls = callsOf(answer);
  const alone = documents.length ? `${plural(documents.length, "document")} with a total relevance of ${decimal(sum, 1)}` : "No document was found";
  find("headline").textContent = comparison ? outcome(comparison) : alone;
  const [good, words] = STATUS[answer.status] ?? [false, answer.status];
  find("outcome").replaceChildren(
    good ? "" : element("span", { className: "badge" }, words),
    `${sources(read, documents.length - read, calls)}. It spent ${number(calls)} of ${plural(usage.budget, "score")} among ${plural(count, "document")}, in ${decimal(answer.timings_ms.total / 1000, 1)} s` +
      (answer.stop_reason === "budget" ? "" : `, and ended because ${STOPPED[answer.stop_reason] ?? answer.stop_reason}`) +
      `${tokens(usage.language_model)}. ${missed(answer)}` +
      (queries.length > 1 ? ` They answer best: ${queries.map((query, i) => `“${shortened(query)}” ${number(documents.filter((one) => one.query === i).length)}`).join(", ")}.` : ""),
  );
  if (calls > 1 && calls < count) {
    find("pitch").textContent =
      `A reranker that can afford ${number(calls)} scores usually spends them on the first ${number(calls)} search results. ` +
      `BoundaryMORPH spends them anywhere among all ${number(count)}.`;
  }
  find("warnings").replaceChildren(...answer.warnings.map((warning) => element("p", { className: "note warn" }, element("b", {}, "Note "), warning.message)));
}

// As many calls as plain reranking may make for it.
export function callsOf({ usage, pool_size: count }) {
  return Math.min(usage.cross_encoder_calls + usage.cached_scores, count);
}

function outcome(comparison) {
  const { ours, plain, onlyOurs } = comparison;
  const [sum, against] = [comparison.sum(ours), comparison.sum(plain)].map((total) => decimal(total, 1));
  const count = plural(ours.length, "document");
  if (!onlyOurs.length) return `Both ways return the same ${count}, with a total score of ${sum}`;
  const change = sum === against ? `the total score is ${sum} either way` : `the total score ${Number(sum) > Number(against) ? "rises" : "falls"} from ${against} to ${sum}`;
  return `${number(onlyOurs.length)} of ${count} ${onlyOurs.length === 1 ? "is" : "are"} different, and ${change}`;
}

// read, estimated: documents of the set.
function sources(read, estimated, calls) {
  if (!read && !estimated) return "The set is empty";
  const why = calls ? "because similar documents scored well" : "by their place in the search and their words";
  if (!estimated) return "The scorer has read every document of the set";
  return read ? `The scorer has read ${number(read)} of the set; ${number(estimated)} ${estimated === 1 ? "was" : "were"} chosen unread, ${why}` : `All documents were chosen unread, ${why}`;
}

// What scoring all candidates is expected to add.
function missed({ expected_loss: loss, pool_size: count, status }) {
  if (status === "retrieval_only") return `What scoring all ${number(count)} would add is not known.`;
  const gain = Math.round((100 * loss) / (1 - Math.min(loss, 0.999)));
  return `Scoring all ${number(count)} is expected to add ${loss ? (gain ? `about ${number(gain)}\u00a0%` : "less than 1\u00a0%") : "nothing"}.`;
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
