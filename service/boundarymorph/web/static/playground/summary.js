// The result of the request: one line, the warnings, and the time by stage.

import { decimal, element, find, number, plural } from "./dom.js";

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
  cost_ceiling: "a ceiling of tokens or money was reached",
  encoder_unavailable: "the encoder cannot be reached",
  encoder_failed: "the encoder failed",
  retriever_unavailable: "the retriever cannot be reached",
  retriever_failed: "the retriever failed",
  scorer_unavailable: "the scorer cannot be reached",
  scorer_failed: "the scorer failed",
};

// queries: of the request, if there are several.
export function showSummary(answer, queries) {
  const { documents, usage } = answer;
  const scored = documents.filter(({ source }) => source === "cross_encoder").length;
  const deep = documents.filter(({ retrieval_rank: rank }) => rank > documents.length);
  const deepest = Math.max(0, ...deep.map(({ retrieval_rank: rank }) => rank));
  const sum = documents.reduce((total, { relevance }) => total + (relevance ?? 0), 0);
  find("headline").textContent = `Total relevance ${decimal(sum, 1)} in ${plural(documents.length, "document")}`;
  find("outcome").textContent =
    `${number(scored)} scored, ${number(documents.length - scored)} inferred` +
    (deep.length ? `; ${number(deep.length)} from below rank ${number(documents.length)}, the deepest from ${number(deepest)}` : "") +
    `. ${percent(answer.expected_loss)} of the best set's relevance may be missed.` +
    (queries ? ` They answer best: ${queries.map((query, i) => `“${query}” ${number(documents.filter((one) => one.query === i).length)}`).join(", ")}.` : "");
  const [kind, words] = STATUS[answer.status] ?? ["bad", answer.status];
  const calls = usage.cross_encoder_calls + usage.cached_scores;
  const cached = usage.cached_scores ? ` (${number(usage.cached_scores)} from the cache)` : "";
  find("status").replaceChildren(
    element("span", { className: `badge ${kind}` }, words),
    ` ${number(calls)} of ${plural(usage.budget, "call")}${cached} in ${plural(usage.rounds, "round")} among ${plural(answer.pool_size, "candidate")}. ` +
      `It ended because ${STOPPED[answer.stop_reason] ?? answer.stop_reason}${cost(usage.language_model)}.` +
      (answer.learned_from ? ` It learned from ${plural(answer.learned_from, "earlier selection")}.` : "") +
      promised(answer.promise),
  );
  find("warnings").replaceChildren(...answer.warnings.map((warning) => element("p", { className: "note warn" }, element("b", {}, "Note "), warning)));
}

// The headline once it is known what plain reranking makes of the same calls.
export function showOutcome(ours, plain, calls) {
  find("headline").textContent = `Total relevance ${decimal(ours, 1)}, against ${decimal(plain, 1)} by plain reranking with the same ${plural(calls, "call")}`;
}

function percent(share) {
  return share > 0 && share < 0.01 ? "Less than 1\u00a0%" : `About ${Math.round(100 * share)}\u00a0%`;
}

// What is known of a promise to lose little.
function promised(promise) {
  if (!promise) return "";
  if (promise.status === "certified") return ` Its promise is certified by ${plural(promise.audits, "audited selection")}.`;
  return ` Its promise is not certified: ${promise.detail}.`;
}

// The cost of a language model as the scorer.
function cost(usage) {
  if (!usage) return "";
  return `. The language model read ${plural(usage.input_tokens, "token")} and wrote ${number(usage.output_tokens)}, for ${usage.cost.toPrecision(3)}`;
}

export function showTime(answer, drawn) {
  const { total, ...stages } = answer.timings_ms;
  const rows = Object.entries(stages).map(([stage, milliseconds]) => {
    const bar = element("span", { className: "total ours", "aria-hidden": "true" });
    bar.style.setProperty("--share", total ? milliseconds / total : 0);
    return element("div", { className: "totals" }, element("span", {}, stage), bar, element("b", {}, `${number(Math.round(milliseconds))} ms`));
  });
  const whole = `${number(Math.round(total))} ms in the service; this page took ${number(Math.round(drawn))} ms to show it.`;
  find("time").replaceChildren(element("p", { className: "lead" }, whole), ...rows);
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
      element("b", {}, problem.title ?? "This does not work"),
      element("p", {}, problem.message),
      errors.length ? element("ul", {}, ...errors) : null,
      hints.length ? element("p", { className: "hint" }, hints.join(" ")) : null,
    ),
  );
}
