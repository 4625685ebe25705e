// The page: sends requests and shows the answers.

import { compare } from "./comparison.js";
import { find, plural } from "./dom.js";
import { How } from "./how.js";
import { RequestForm } from "./request.js";
import { Problem, Service } from "./service.js";
import { offerSwitch, showSets, showTotals } from "./sets.js";
import { Snippets } from "./snippets.js";
import { callsOf, showProblem, showSummary } from "./summary.js";

const DEPTH = 2000; // candidates whose relevance is drawn

const service = new Service();
const form = new RequestForm(ask);
const snippets = new Snippets();
const how = new How();
let underWay = new AbortController();
let answered = false; // whether an answer is shown
let elsewhere = new Map(); // why indexes cannot be searched here, by name

async function ask() {
  underWay.abort();
  const { signal } = (underWay = new AbortController());
  showProblem(null);
  busy(true);
  try {
    await select(form.request(), signal);
  } catch (error) {
    if (signal.aborted) return;
    forget(error);
    if (error.status === 401) askForKey();
  } finally {
    if (underWay.signal === signal) busy(false);
  }
}

async function select(request, signal) {
  say("Searching …");
  const depth = Math.max(DEPTH, request.k, request.budget === "auto" ? 0 : request.budget);
  const explained = request.queries ? { explain: true } : { explain: "pool", explain_depth: depth };
  const answer = await service.select({ ...request, ...explained }, signal);
  form.paid ||= Boolean(answer.usage.language_model);
  const comparable = !request.queries && answer.documents.length > 0;
  show(request, answer, comparable && !form.paid ? await compared(request, answer, signal) : null);
  find("compare").hidden = !comparable || !form.paid;
  find("compare").textContent = `Compare with plain reranking, for at most ${plural(callsOf(answer) + answer.documents.length, "score")} more`;
  find("compare").onclick = async () => {
    find("headline").focus(); // the button goes
    find("compare").hidden = true;
    show(request, answer, await compared(request, answer, signal));
  };
}

// Returns null, and says so, if the comparison has failed.
async function compared(request, answer, signal) {
  say("Comparing …");
  try {
    return await compare(service, request, answer, callsOf(answer), signal);
  } catch (error) {
    if (signal.aborted) throw error;
    return error;
  }
}

// result: the comparison, the error by which it failed, or null without a comparison.
function show(request, answer, result) {
  const comparison = result instanceof Error ? null : result;
  const queries = request.queries ?? [request.query];
  answered = true;
  find("answer").hidden = false;
  showSummary(answer, comparison, queries);
  showSets(answer, comparison, queries);
  showTotals(comparison, result instanceof Error ? `It could not be compared with plain reranking: ${result.message}` : "", answer.relevance === "human");
  how.show(request, answer, comparison, callsOf(answer));
  snippets.show(request, Boolean(service.key));
  say(find("headline").textContent, false);
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
  say(answered ? "Cancelled. This is the answer to the request before." : "Cancelled.");
}

// Shows no answer. problem: why, if there is a reason.
function forget(problem = null) {
  underWay.abort();
  answered = false;
  find("answer").hidden = true;
  say("");
  showProblem(problem);
}

// shown: whether for everybody, or only for screen readers.
function say(words, shown = true) {
  find("progress").textContent = words;
  find("progress").classList.toggle("hidden", !shown);
}

async function listIndexes() {
  try {
    const { indexes, unreadable } = await service.read("indexes");
    const searchable = indexes.filter(({ encoder, dimension }) => encoder !== null || !dimension);
    const broken = unreadable.map(({ name }) => [name, `The index '${name}' cannot be read now.`]);
    const foreign = indexes.filter((index) => !searchable.includes(index)).map(({ name }) => [name, `The index '${name}' needs vectors of queries, which this page cannot make.`]);
    elsewhere = new Map([...foreign, ...broken]);
    form.offer(searchable, (searchable.length ? broken : [...foreign, ...broken]).map(([, why]) => why).join(" "));
  } catch (error) {
    form.withoutIndexes(error.status === 403 ? "This key lacks the scope 'select'." : `The indexes cannot be listed: ${error.message}`);
    if (error.status === 401) askForKey();
    throw error;
  }
}

function askForKey() {
  find("key").form.hidden = false;
  if (document.activeElement === document.body) find("key").focus();
}

// Asks what the form holds, unless it could not take all of the address.
function follow() {
  const [field, value] = form.refused ?? [];
  const detail = (field === "index" && elsewhere.get(value)) || `There is no ${field} '${value}' here.`;
  if (field) forget(new Problem({ title: "This link does not work here", detail }));
  else if (form.isFilled) form.ask("replace");
  else forget();
}

// Asks at first sight. Only an index needs to be known before.
async function begin() {
  const waiting = form.usesIndex;
  if (!waiting) follow();
  try {
    await listIndexes();
  } catch (error) {
    return waiting && showProblem(error);
  }
  if (waiting && !form.asked) follow();
}

service.onWait = (reason) => say(`${reason} …`);
addEventListener("popstate", () => form.restore() && follow());
find("cancel").addEventListener("click", cancel);
find("key").form.addEventListener("submit", (event) => event.preventDefault()); // Enter is a change, too
find("key").addEventListener("change", () => {
  service.key = find("key").value.trim();
  begin();
});
offerSwitch();
form.restore();
begin();
