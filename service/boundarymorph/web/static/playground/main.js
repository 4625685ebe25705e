// The page: sends requests and shows the answers.

import { Comparison, offerComparison, rerankPlainly, showComparison, showNoComparison } from "./comparison.js";
import { hideCurve, showCurve } from "./curve.js";
import { decimal, find, number, plural } from "./dom.js";
import { showCalls, showSet } from "./documents.js";
import { DEMO, QUERIES, offerQueries } from "./examples.js";
import { drawLegend } from "./marks.js";
import { RankingChart } from "./ranking.js";
import { RequestForm } from "./request.js";
import { Selection } from "./selection.js";
import { Problem, Service } from "./service.js";
import { Snippets } from "./snippets.js";
import { showOutcome, showProblem, showSummary } from "./summary.js";
import { Texts } from "./texts.js";

const LONGEST_WAIT = 60; // seconds that the service may ask to wait for
const service = new Service();
const form = new RequestForm(ask);
const snippets = new Snippets();
const ranking = new RankingChart(describe);
let underWay = new AbortController();
let shown = null;
let elsewhere = new Map(); // why indexes cannot be searched here, by name
let begun = false;

async function ask() {
  underWay.abort();
  const { signal } = (underWay = new AbortController());
  showProblem(null);
  busy(true);
  try {
    await patiently(() => select(signal), signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    forget(error);
    if (error.status === 401) find("key").focus();
  } finally {
    if (underWay.signal === signal) {
      busy(false);
      if (!shown) say("");
    }
  }
}

// Tries again when the service says when to, as it does while its models are warming up.
async function patiently(asking, signal) {
  for (;;) {
    try {
      return await asking();
    } catch (error) {
      if (error.status !== 503 || !(error.retryAfter <= LONGEST_WAIT)) throw error;
      say(`${error.reason} …`);
      await pause(error.retryAfter, signal);
    }
  }
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    setTimeout(resolve, 1000 * Math.max(1, seconds));
    signal.addEventListener("abort", () => reject(signal.reason));
  });
}

async function select(signal) {
  const request = form.request();
  say("Searching …");
  let answered = false;
  for await (const { name, data } of service.select({ ...request, explain: request.queries ? true : "pool" }, signal)) {
    if (signal.aborted) return;
    if (name === "selection") {
      answered = true;
      await show(request, data, signal);
    } else {
      write(`Round ${data.rounds + 1}: ${plural(data.cross_encoder_calls + data.cached_scores, "call")} of ${number(data.budget)} so far`);
    }
  }
  if (!answered) throw new Problem({ title: "The connection broke during the answer", detail: "Is the service still running?" });
}

// While another answer is awaited, the one that is shown is stale.
function busy(waiting) {
  find("answer").ariaBusy = String(waiting);
  if (!waiting && document.activeElement === find("cancel")) find("go").focus();
  find("cancel").hidden = !waiting;
}

function cancel() {
  underWay.abort();
  busy(false);
  find("answer").hidden = !shown;
  say(shown ? "Cancelled. This is the answer to the request before." : "Cancelled.");
}

// Shows no answer. problem: why, if there is a reason.
function forget(problem = null) {
  underWay.abort();
  shown = null;
  find("answer").hidden = true;
  say("");
  showProblem(problem);
}

async function show(request, answer, signal) {
  const selection = new Selection(answer);
  const known = request.pool ?? answer.documents;
  const read = request.index === undefined ? null : (id) => service.read(`indexes/${request.index}/documents/${encodeURIComponent(id)}`);
  shown = { request, answer, selection, texts: new Texts(known, read) };
  find("answer").hidden = false;
  find("answer").classList.toggle("several", Boolean(request.queries));
  showSummary(answer, request.queries);
  draw();
  showSet(answer, selection, shown.texts, request.queries);
  showCalls(selection, shown.texts, request.queries);
  snippets.show(request, Boolean(service.key));
  hideCurve();
  showNoComparison("");
  busy(false);
  say(find("headline").textContent, false);
  const comparing = () => compare(request, answer, shown.texts, signal);
  form.paid ||= Boolean(answer.usage.language_model);
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
  ranking.show(shown.selection, plainCalls(shown.answer));
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
    showOutcome(comparison, calls);
    showComparison(comparison, calls, texts);
    showCurve(shown.selection.sets, comparison);
  } catch (error) {
    if (error.name !== "AbortError") showNoComparison(`It could not be reranked: ${error.message}`);
  }
}

function describe(position) {
  const { answer, selection, texts } = shown;
  const name = texts.title(answer.pool.ids[position]);
  const call = selection.asked.get(position);
  const [relevance, std] = [selection.relevance[position], selection.std[position]].map((value) => decimal(value));
  const unread = selection.isScored(position) ? `${relevance} · score known` : `${relevance} ± ${std} · not read`;
  const worth = call ? `${relevance} · read in round ${call.round}` : unread;
  return `${name}\nrank ${number(position + 1)} · ${worth}${selection.selected.has(position) ? " · in the set" : ""}`;
}

// For everybody.
function say(words, shownToo = true) {
  write(shownToo ? words : "");
  find("said").textContent = words;
}

// For those who see it: a screen reader would read every round.
function write(words) {
  find("progress").textContent = words;
}

async function listIndexes() {
  try {
    const { indexes, unreadable } = await service.read("indexes");
    const searchable = indexes.filter(({ encoder, dimension }) => encoder !== null || !dimension);
    const broken = unreadable.map(({ name }) => [name, `The index '${name}' cannot be read now.`]);
    const foreign = indexes.filter((index) => !searchable.includes(index)).map(({ name }) => [name, `The index '${name}' needs vectors of queries, which this page cannot make.`]);
    elsewhere = new Map([...foreign, ...broken]);
    form.offer(searchable, (searchable.length ? broken : [...foreign, ...broken]).map(([, why]) => why).join(" "));
    showProblem(null);
    begin(searchable.some(({ name, count }) => name === DEMO && count));
  } catch (error) {
    if (error.status === 503) setTimeout(listIndexes, 1000 * ((error.retryAfter || 1))); // it is starting
    const unknown = service.key ? "The service does not know this key: paste it again." : "This service needs an API key: enter it above.";
    const words = { 401: error.type ? unknown : error.message, 403: "This key lacks the scope 'select'.", 503: `${error.reason} …` };
    form.withoutIndexes(words[error.status] ?? `The indexes cannot be listed: ${error.message}`);
    if (error.status === 401 && document.activeElement === document.body) find("key").focus();
  }
}

// Asks at first sight: what the address holds, or the demo's query.
function begin(demo) {
  if (begun) return;
  begun = true;
  if (demo) offerQueries((query) => {
    form.query = query;
    form.ask();
  });
  if (demo && !form.query && find("index").value === DEMO) form.query = QUERIES[0]; // what somebody has typed in meanwhile stays
  if (!form.asked) follow();
}

// Asks what the form holds, unless it could not take all of the address.
function follow() {
  const [field, value] = form.refused ?? [];
  const detail = (field === "index" && elsewhere.get(value)) || `There is no ${field} '${value}' here.`;
  if (field) forget(new Problem({ title: "This link does not work here", detail }));
  else if (form.isFilled) form.ask("replace");
  else forget();
}

addEventListener("popstate", () => form.restore() && follow());
find("cancel").addEventListener("click", cancel);
find("key").form.addEventListener("submit", (event) => event.preventDefault()); // Enter is a change, too
find("key").addEventListener("change", () => {
  service.key = find("key").value.trim();
  listIndexes();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && draw());
form.restore();
listIndexes();
