// The form, and the request that it describes.

import { refused, remember, restore } from "./address.js";
import { element, find, number, plural } from "./dom.js";
import { ARTICLES, DEMO, QUERIES, USUAL } from "./examples.js";

// Something in the form of which no request can be made.
class Mistake extends Error {
  title = "Nothing was sent";
}

export class RequestForm {
  #form = find("ask");
  #onAsk;
  #asked = null; // the state of the form at the last request; after the first, moving a slider sends one, unless calls cost money
  #address = null; // what was last read from the address, or written to it
  #pending = null; // the request of a slider that may still move
  #hint = "";
  paid = false;

  constructor(onAsk) {
    this.#onAsk = onAsk;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    // A field that is not valid cannot be shown, and nothing is sent, while its section is closed.
    this.#form.addEventListener("invalid", (event) => (event.target.closest("details") ?? {}).open = true, true);
    for (const range of this.#form.querySelectorAll("[data-of]")) this.#couple(range);
    this.#form.addEventListener("input", () => this.#update());
    for (const choice of this.#form.elements.source) choice.addEventListener("change", () => this.#enter());
    find("edit").addEventListener("click", () => this.#edit());
    const wide = matchMedia("(min-width: 761px)"); // where there is room for the settings
    wide.addEventListener("change", () => (find("settings").open ||= wide.matches));
    find("settings").open = wide.matches;
  }

  // Sends the request and keeps it in the address. how: as of `remember`.
  ask(how = "push") {
    this.#rest();
    if (!this.#form.reportValidity()) return;
    this.#asked = this.#state;
    this.#update();
    remember(this.#form, how);
    this.#address = location.search;
    this.#onAsk();
  }

  // Fills in what the address holds. Returns whether it has changed: a link within the page leaves it as it is.
  restore() {
    if (location.search === this.#address) return false;
    this.#rest();
    this.#address = location.search;
    restore(this.#form);
    this.#update();
    if (this.#options.some(isSet)) this.#form.querySelector(".more").open = find("settings").open = true;
    return true;
  }

  // What the address asks for and this page does not have, as [field, value]; undefined if there is no such thing.
  get refused() {
    return refused(this.#form);
  }

  get asked() {
    return this.#asked !== null;
  }

  // Whether there is something to look for, and something to look in.
  get isFilled() {
    const { source, query, index, documents } = this.#form.elements;
    const found = { example: true, index: index.value, pool: documents.value.trim() };
    return Boolean(query.value && found[source.value]);
  }

  get usesIndex() {
    return this.#form.elements.source.value === "index";
  }

  // Throws a Mistake.
  request() {
    const fields = this.#form.elements;
    const also = linesOf(fields.also.value);
    const request = also.length ? { queries: [fields.query.value, ...also] } : { query: fields.query.value };
    if (this.usesIndex && !fields.index.value) throw new Mistake(this.#hint || "Choose an index first.");
    if (this.usesIndex) request.index = fields.index.value;
    else if (fields.source.value === "example") Object.assign(request, { pool: identified(ARTICLES), ranked: true });
    else Object.assign(request, { pool: documentsOf(fields.documents.value), ranked: fields.ranked.checked });
    if (!this.usesIndex && request.pool.every((document) => document.score !== undefined)) delete request.ranked;
    request.budget = fields.auto.checked ? "auto" : Number(fields.budget.value);
    request.k = Number(fields.k.value);
    if (fields.method.value) request.method = fields.method.value;
    if (fields.distinct.value.trim()) request.distinct = fields.distinct.value.trim();
    if (this.usesIndex) {
      if (fields.depth.value) request.depth = Number(fields.depth.value);
      if (fields.filter.value.trim()) request.filter = filterOf(fields.filter.value);
      if (fields.hybrid.checked) request.hybrid = true;
    }
    // The answer depends on nothing that was asked before: with known scores, a second request would show no calls.
    request.reuse = false;
    request.return_documents = true;
    return request;
  }

  // Offers indexes. Without any, documents of one's own are all that can be searched. others: what to say of other indexes.
  offer(indexes, others) {
    const select = find("index");
    const named = (name) => indexes.some((index) => index.name === name);
    const largest = indexes.reduce((most, index) => (index.count > (most?.count ?? 0) ? index : most), indexes[0]);
    const linked = new URLSearchParams(location.search).get("index");
    const usual = indexes.some(({ name, count }) => name === DEMO && count) ? DEMO : (largest?.name ?? "");
    const wanted = named(select.value) ? select.value : (linked || usual);
    select.replaceChildren(...indexes.map(({ name, count }) => new Option(`${name} (${number(count)})`, name)));
    select.value = wanted;
    select.hidden = !indexes.length;
    this.say(others || (indexes.length ? "" : "There is no index yet: `boundarymorph demo` makes one."));
    if (usual === DEMO) this.#offerQueries();
    this.#update();
  }

  #offerQueries() {
    const { query } = this.#form.elements;
    const buttons = QUERIES.map((words) => {
      const button = element("button", { type: "button", className: "plain" }, words);
      button.addEventListener("click", () => {
        query.value = words;
        this.ask();
      });
      return button;
    });
    find("tries").replaceChildren("Try", ...buttons);
    find("tries").hidden = false;
    USUAL.index.query = QUERIES[0];
    if (this.usesIndex && !query.value) query.value = QUERIES[0];
  }

  // Fills in the usual values of the chosen source where a field still holds those of another source, and asks.
  #enter() {
    const fields = this.#form.elements;
    for (const [name, value] of Object.entries(USUAL[fields.source.value])) {
      if (!fields[name].value || Object.values(USUAL).some((usual) => usual[name] === fields[name].value)) fields[name].value = value;
    }
    this.#update();
    if (this.isFilled && !this.paid) this.ask();
  }

  // Makes the articles of the example documents of one's own.
  #edit() {
    const { source, documents } = this.#form.elements;
    documents.value = ARTICLES.map((article) => JSON.stringify(article)).join("\n");
    source.value = "pool";
    this.#update();
    documents.focus();
  }

  withoutIndexes(why) {
    find("index").replaceChildren();
    find("index").hidden = true;
    this.say(why);
  }

  // Shows a hint about the indexes.
  say(hint) {
    this.#hint = hint;
    find("no-index").textContent = hint;
    find("no-index").hidden = !hint;
  }

  #rest() {
    clearTimeout(this.#pending);
    this.#pending = null;
  }

  #couple(range) {
    const exact = find(range.dataset.of);
    const moved = () => {
      this.#rest();
      if (this.#asked && !this.paid && this.#form.checkValidity()) this.#pending = setTimeout(() => this.ask("replace"), 300);
    };
    range.addEventListener("input", () => {
      exact.value = range.value;
      moved();
    });
    exact.addEventListener("input", moved);
  }

  // Shows what follows from the fields: those in force, what cannot be combined, and whether the answer is of others.
  #update() {
    const { source, auto, budget, k, also, distinct } = this.#form.elements;
    find("index").disabled = !this.usesIndex;
    for (const part of this.#form.querySelectorAll("[data-source]")) {
      part.hidden = part.dataset.source !== source.value;
      for (const field of part.querySelectorAll(".more [name]")) field.disabled = part.hidden; // so that what it holds cannot be invalid
    }
    for (const range of this.#form.querySelectorAll("[data-of]")) scale(range, source.value === "example");
    for (const field of [budget, this.#form.querySelector("[data-of=budget]")]) field.disabled = auto.checked;
    // Options that do not go together are not valid: the browser says so beside the one to change.
    const several = linesOf(also.value).length > 0;
    const clash = (field, given) => field.setCustomValidity(given && several ? "This does not go with further queries. Leave one of them out." : "");
    clash(auto, auto.checked);
    clash(distinct, distinct.value.trim());
    const count = this.#options.filter(isSet).length;
    find("options-set").textContent = count ? ` (${count} set)` : "";
    const scores = auto.checked ? "as many scores as it takes" : plural(Number(budget.value), "score");
    find("settings").firstElementChild.textContent = `Settings: ${scores}, ${plural(Number(k.value), "document")}`;
    find("stale").hidden = this.#pending !== null || this.#asked === null || this.#asked === this.#state;
  }

  get #options() {
    return [...this.#form.querySelectorAll(".more [name]:enabled")];
  }

  get #state() {
    return new URLSearchParams(new FormData(this.#form)).toString();
  }
}

// few: whether the candidates are so few that a slider moves one by one.
function scale(range, few) {
  const exact = find(range.dataset.of);
  Object.assign(range, { step: few ? 1 : 5, min: exact.id === "k" ? (few ? 1 : 5) : 0, max: few ? ARTICLES.length : 200, value: exact.value });
}

function isSet(option) {
  return option.type === "checkbox" ? option.checked : Boolean(option.value.trim());
}

// Parses a JSON array, JSON objects that each begin on a line of their own, or one text per line.
function documentsOf(pasted) {
  const text = pasted.trim();
  if (!text) throw new Mistake("Paste some documents first: one a line, or as JSON.");
  let documents = linesOf(text);
  if (/^\[\s*["{]/.test(text)) documents = parsed(text, "The documents begin like a JSON array but are not one");
  else if (/^\{\s*"/.test(text)) documents = text.split(/(?<=\})\s*\n\s*(?=\{)/).map((object, i) => parsed(object, `Document ${i + 1} is not a JSON object`));
  return identified(documents);
}

// Gives every document an id, by which the page finds it again.
function identified(documents) {
  return documents.map((document, position) => {
    const given = typeof document === "string" ? { text: document } : document;
    if (typeof given !== "object" || given === null) throw new Mistake(`Document ${position + 1} is neither a text nor an object.`);
    if (typeof given.text !== "string") throw new Mistake(`Document ${position + 1} has no "text".`);
    const { _id, ...rest } = given; // _id as in BEIR
    return { ...rest, id: String(given.id ?? _id ?? position + 1) };
  });
}

function linesOf(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

function filterOf(text) {
  const filter = parsed(text, "The filter is not JSON");
  if (typeof filter !== "object" || filter === null || Array.isArray(filter)) throw new Mistake('The filter must be an object, such as {"kind": "function"}.');
  return filter;
}

function parsed(text, complaint) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Mistake(`${complaint}: ${error.message}`);
  }
}
