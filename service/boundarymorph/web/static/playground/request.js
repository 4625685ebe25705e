// The form, and the request that it describes.

import { remember, restore } from "./address.js";
import { find, number } from "./dom.js";
import { DEMO, POOL } from "./examples.js";

export class RequestForm {
  #form = find("ask");
  #asked = false; // after the first request, moving a slider sends one too, unless calls cost money
  paid = false;

  constructor(onAsk) {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(onAsk);
    });
    // A field that is not valid cannot be shown, and nothing is sent, while its section is closed.
    this.#form.addEventListener("invalid", (event) => (event.target.closest("details") ?? {}).open = true, true);
    for (const range of this.#form.querySelectorAll("[data-of]")) this.#couple(range, onAsk);
    this.#form.addEventListener("input", () => this.#combine());
    for (const radio of this.#form.querySelectorAll("[name=source]")) radio.addEventListener("change", () => this.#showSource());
    find("example").addEventListener("click", () => this.#useExample());
    find("documents").addEventListener("input", () => this.#offerExample());
  }

  // Sends the request and keeps it in the address.
  ask(onAsk, how = "push") {
    this.#asked = true;
    if (this.usesIndex) remember(this.#form, how);
    onAsk();
  }

  // Fills in what the address holds, and returns whether it holds a query.
  restore() {
    const queried = restore(this.#form);
    this.#combine();
    return queried;
  }

  set query(words) {
    this.#form.elements.query.value = words;
  }

  get usesIndex() {
    return this.#form.elements.source.value === "index";
  }

  // Throws an Error that says what is wrong with the documents.
  request() {
    const fields = this.#form.elements;
    const also = linesOf(fields.also.value);
    const request = also.length ? { queries: [fields.query.value, ...also] } : { query: fields.query.value };
    if (this.usesIndex) request.index = fields.index.value;
    else Object.assign(request, { pool: documentsOf(fields.documents.value), ranked: fields.ranked.checked });
    if (!this.usesIndex && request.pool.every((document) => document.score !== undefined)) delete request.ranked;
    request.budget = Number(fields.budget.value);
    request.k = Number(fields.k.value);
    if (fields.method.value) request.method = fields.method.value;
    for (const name of ["rounds", "deadline_ms", ...(this.usesIndex ? ["depth"] : [])]) {
      if (fields[name].value) request[name] = Number(fields[name].value);
    }
    if (fields.auto.checked) request.budget = "auto";
    if (fields.promise.value) request.objective = { lose_at_most: Number(fields.promise.value), in: 0.9 };
    if (this.usesIndex && fields.filter.value.trim()) request.filter = filterOf(fields.filter.value);
    if (this.usesIndex && fields.hybrid.checked) request.hybrid = true;
    for (const name of ["distinct", "calibration"]) if (fields[name].value.trim()) request[name] = fields[name].value.trim();
    request.reuse = false; // otherwise a second request would find its scores known, and show no calls
    request.return_documents = true;
    return request;
  }

  offer(indexes, unreadable) {
    const select = find("index");
    const chosen = select.value;
    const wanted = [chosen, new URLSearchParams(location.search).get("index"), DEMO];
    const largest = indexes.reduce((most, index) => (index.count > (most?.count ?? 0) ? index : most), indexes[0]);
    select.replaceChildren(...indexes.map(({ name, count }) => new Option(`${name} (${number(count)})`, name)));
    select.value = wanted.find((name) => indexes.some((index) => index.name === name && index.count)) ?? largest?.name ?? "";
    select.hidden = !indexes.length;
    if (unreadable.length) this.#say(`Cannot be read now: ${unreadable.join(", ")}.`);
    else this.#say(indexes.length ? "" : "There is no index yet. `make demo` makes one; or use documents of your own.");
  }

  withoutIndexes(why) {
    find("index").replaceChildren();
    find("index").hidden = true;
    this.#say(why);
  }

  #say(hint) {
    find("no-index").textContent = hint;
    find("no-index").hidden = !hint;
  }

  #couple(range, onMoved) {
    const exact = find(range.dataset.of);
    let pending;
    const moved = () => {
      clearTimeout(pending);
      if (this.#asked && !this.paid && this.#form.checkValidity()) pending = setTimeout(() => this.ask(onMoved, "replace"), 300);
    };
    range.addEventListener("input", () => {
      exact.value = range.value;
      moved();
    });
    exact.addEventListener("input", () => {
      range.value = exact.value;
      moved();
    });
  }

  #showSource() {
    find("from-index").hidden = !this.usesIndex;
    find("from-pool").hidden = this.usesIndex;
    for (const label of this.#form.querySelectorAll("[data-source]")) {
      label.hidden = label.dataset.source !== this.#form.elements.source.value;
      label.querySelector("input").disabled = label.hidden; // so that what it holds cannot be invalid
    }
    this.#combine();
  }

  // Options that do not go together are not valid: the browser says so beside the one to change.
  #combine() {
    const { also, auto, distinct, promise } = this.#form.elements;
    const several = linesOf(also.value).length > 0;
    const clash = (field, given) => field.setCustomValidity(given && several ? "This does not go with further queries. Leave one of them out." : "");
    clash(auto, auto.checked);
    clash(promise, promise.value);
    clash(distinct, distinct.value.trim());
  }

  #useExample() {
    const { query, documents, budget, k } = this.#form.elements;
    query.value = POOL.query;
    documents.value = POOL.documents.join("\n");
    for (const [field, value] of [[budget, POOL.budget], [k, POOL.k]]) {
      field.value = value;
      this.#form.querySelector(`[data-of=${field.id}]`).value = value;
    }
    this.#offerExample();
  }

  // The example would replace what somebody has pasted.
  #offerExample() {
    find("example").disabled = Boolean(this.#form.elements.documents.value.trim());
  }
}

// Parses a JSON array, NDJSON, or one text per line. Every document gets an id, by which the page finds it again.
export function documentsOf(pasted) {
  const text = pasted.trim();
  if (!text) throw new Error("Paste some documents first: one a line, or as JSON.");
  const lines = linesOf(text);
  let documents = lines;
  if (/^\[\s*["{]/.test(text)) documents = parsed(text, "The documents begin like a JSON array, but are none");
  else if (/^\{\s*"/.test(text)) documents = lines.map((line, i) => parsed(line, `Line ${i + 1} is not a JSON object`));
  return documents.map((document, position) => {
    const given = typeof document === "string" ? { text: document } : document;
    if (typeof given !== "object" || given === null) throw new Error(`Document ${position + 1} is neither a text nor an object.`);
    const { _id, ...rest } = given; // _id as in BEIR
    return { ...rest, id: String(given.id ?? _id ?? position + 1) };
  });
}

function linesOf(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

function filterOf(text) {
  const filter = parsed(text, "The filter is not JSON");
  if (typeof filter !== "object" || filter === null || Array.isArray(filter)) throw new Error('The filter must be an object, such as {"kind": "function"}.');
  return filter;
}

function parsed(text, complaint) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${complaint}: ${error.message}`);
  }
}
