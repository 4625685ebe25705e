// The page: sends requests and shows the answers.

import { Comparison, offerComparison, rerankPlainly, showComparison, showNoComparison } from "./comparison.js";
import { hideCurve, showCurve } from "./curve.js";
import { decimal, find, number, plural } from "./dom.js";
import { showCalls, showSet } from "./documents.js";
import { DEMO, QUERIES, offerQueries } from "./examples.js";
import { Judging } from "./judging.js";
import { MapChart } from "./map.js";
import { drawLegend } from "./marks.js";
import { RankingChart } from "./ranking.js";
import { Replay } from "./replay.js";
import { RequestForm } from "./request.js";
import { Unfolding } from "./selection.js";
import { Service } from "./service.js";
import { Snippets } from "./snippets.js";
import { showOutcome, showProblem, showSummary, showTime } from "./summary.js";
import { Texts } from "./texts.js";

const RETRY = 1000; // milliseconds between attempts
const PATIENCE = 500; // milliseconds after which an unfinished selection is shown
const service = new Service();
const form = new RequestForm(ask);
const snippets = new Snippets();
const judging = new Judging(service);
const ranking = new RankingChart(describe);
const map = new MapChart(describe);
const replay = new Replay((frame) => {
  ranking.show(frame);
  map.show(frame);
});
let underWay = null;
let shown = null;
let begun = false;

async function ask() {
  underWay?.abort();
  const asking = (underWay = new AbortController());
  showProblem(null);
  busy(true);
  try {
    const request = form.request();
    const unfolding = new Unfolding();
    const begun = performance.now();
    say("Looking for candidates");
    let [live, answered] = [false, false];
    for await (const { name, data } of service.select({ ...request, explain: request.queries ? true : "pool" }, asking.signal)) {
      if (asking.signal.aborted) return;
      if (name === "selection") {
        answered = true;
        await show(request, data, unfolding, asking.signal);
      } else {
        if (!request.queries) unfolding.add(data);
        if (!request.queries && performance.now() - begun > PATIENCE) {
          if (!live) beginLive(unfolding.frames[0]);
          live = true;
          ranking.show(unfolding.frames.at(-1));
        }
        say(`Round ${data.rounds + 1}: ${plural(data.cross_encoder_calls + data.cached_scores, "call")} of ${number(data.budget)} so far`);
      }
    }
    if (!answered) throw new Error("The answer broke off. Is the service still running?");
  } catch (error) {
    if (error.name === "AbortError") return;
    shown = null;
    showProblem(error);
    find("answer").hidden = true;
    if (error.status === 401) find("key").focus();
  } finally {
    if (underWay === asking) {
      busy(false);
      if (!shown) say("");
    }
  }
}

// While another answer is awaited, the one that is shown is stale.
function busy(waiting) {
  find("answer").ariaBusy = String(waiting);
  find("cancel").hidden = !waiting;
}

function cancel() {
  underWay?.abort();
  busy(false);
  find("answer").hidden = !shown;
  say(shown ? "Cancelled. This is the answer to the request before." : "Cancelled.");
}

// Shows an unfinished selection along the ranking, which is known before ids and places.
function beginLive(prior) {
  shown = null;
  find("answer").classList.add("live");
  find("answer").classList.remove("several");
  find("answer").hidden = false;
  drawLegend();
  ranking.begin(prior, 0);
}

async function show(request, answer, unfolding, signal) {
  const begun = performance.now();
  unfolding.end(answer);
  const { frames } = unfolding;
  const last = frames.at(-1);
  const known = request.pool ?? answer.documents;
  const read = request.index === undefined ? null : (id) => service.read(`indexes/${request.index}/documents/${encodeURIComponent(id)}`);
  shown = { request, answer, frames, texts: new Texts(known, read) };
  find("answer").hidden = false;
  find("answer").classList.remove("live");
  find("answer").classList.toggle("several", Boolean(request.queries));
  showSummary(answer, request.queries);
  draw();
  showSet(answer, last, shown.texts, request.queries);
  showCalls(last, shown.texts, request.queries);
  snippets.show(request, Boolean(service.key));
  judging.offer(request, answer, shown.texts);
  hideCurve();
  showNoComparison("");
  busy(false);
  await new Promise(requestAnimationFrame);
  showTime(answer, performance.now() - begun);
  say(find("headline").textContent, false);
  const comparing = () => compare(request, answer, shown.texts, signal);
  form.paid = Boolean(answer.usage.language_model);
  if (request.queries) return;
  if (form.paid) offerComparison(plainCalls(answer), comparing);
  else await comparing();
}

// As many calls as the selection made.
function plainCalls({ usage, pool_size: count }) {
  return Math.min(usage.cross_encoder_calls + usage.cached_scores, count);
}

// What there is to see of one query: of several, the service explains the calls alone.
function draw() {
  if (shown.request.queries) return;
  drawLegend();
  ranking.begin(shown.frames[0], plainCalls(shown.answer));
  map.begin(shown.answer.pool.map);
  replay.begin(shown.frames);
}

async function compare(request, answer, texts, signal) {
  if (!answer.pool_size) return showNoComparison("There are no candidates to rerank.");
  showNoComparison("Reranking …");
  try {
    const { ids } = answer.pool;
    const calls = Math.min(plainCalls(answer), ids.length);
    const { scored, unseen } = await rerankPlainly(service, { ...request, budget: calls }, ids, signal);
    texts.add([...scored, ...unseen]);
    const comparison = new Comparison(answer, scored);
    showOutcome(comparison.sum(comparison.ours), comparison.sum(comparison.plain), calls);
    showComparison(comparison, texts);
    showCurve(shown.frames, comparison);
  } catch (error) {
    if (error.name !== "AbortError") showNoComparison(`It could not be reranked: ${error.message}`);
  }
}

function describe(position, frame) {
  const name = shown ? shown.texts.title(shown.answer.pool.ids[position]) : "";
  const call = frame.asked.get(position);
  const worth = `${decimal(frame.relevance[position])}${frame.isScored(position) ? "" : ` ± ${decimal(frame.std[position])}`}`;
  const how = call ? `scored in round ${call.round}` : "not scored";
  return `${name}\nrank ${number(position + 1)} · ${worth} · ${how}${frame.selected.has(position) ? " · in the set" : ""}`;
}

// For screen readers, and for what is shown nowhere else.
function say(words, shownToo = true) {
  find("progress").textContent = words;
  find("progress").classList.toggle("hidden", !shownToo);
}

async function listIndexes() {
  try {
    const { indexes, unreadable } = await service.read("indexes");
    const searchable = indexes.filter(({ encoder, dimension }) => encoder !== null || !dimension); // others need query embeddings
    form.offer(searchable, unreadable.map(({ name }) => name));
    showProblem(null);
    begin(searchable.some(({ name, count }) => name === DEMO && count));
  } catch (error) {
    if (error.status === 503) setTimeout(listIndexes, RETRY); // it is starting
    const unknown = service.key ? "The service does not know this key: paste it again." : "This service needs an API key: enter it above.";
    const words = { 401: unknown, 403: "This key lacks the scope 'select'." };
    form.withoutIndexes(words[error.status] ?? `The indexes cannot be listed: ${error.message}`);
  }
}

// Asks at first sight: what the address holds, or the demo's query.
function begin(demo) {
  if (begun) return;
  begun = true;
  if (demo) offerQueries((query) => {
    form.query = query;
    form.ask(ask);
  });
  const queried = location.search ? form.restore() : demo;
  if (demo && !find("query").value) form.query = QUERIES[0]; // what somebody has typed in meanwhile stays
  if (queried && form.usesIndex) ask();
}

addEventListener("popstate", () => form.restore() && ask());
find("cancel").addEventListener("click", cancel);
find("key").form.addEventListener("submit", (event) => event.preventDefault()); // Enter is a change, too
find("key").addEventListener("change", () => {
  service.key = find("key").value.trim();
  listIndexes();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && draw());
listIndexes();
