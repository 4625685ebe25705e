// The form, and the request that it describes.

import { find } from "./dom.js";

const EXAMPLE = {
  query: "effects of exercise on sleep",
  documents: [
    "Resistance training in older adults: a meta-analysis of sleep outcomes.",
    "Sleeping bags for alpine use: a survey of manufacturers.",
    "Evening exercise does not delay sleep onset in trained athletes.",
    "Aerobic exercise improves the subjective quality of sleep in insomnia.",
    "The history of the sleeping car on European railways.",
    "Physical activity and sleep: effects of timing, type and duration.",
    "Sleep and recovery of shift workers who walk to work.",
    "Exercise-induced changes of body temperature and slow-wave sleep.",
    "A catalogue of exercises for violin students.",
    "Yoga before bedtime: a randomised trial with poor sleepers.",
    "Muscle strength after a week in bed.",
    "Naps and sprint performance of football players.",
  ],
};

export class RequestForm {
  #form = find("ask");
  #asked = false; // after the first request, moving a slider sends one too, unless calls cost money
  paid = false;

  constructor(onAsk) {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#asked = true;
      onAsk();
    });
    for (const range of this.#form.querySelectorAll("[data-of]")) this.#couple(range, onAsk);
    for (const radio of this.#form.querySelectorAll("[name=source]")) radio.addEventListener("change", () => this.#showSource());
    find("example").addEventListener("click", () => this.#useExample());
  }

  get usesIndex() {
    return this.#form.elements.source.value === "index";
  }

  // Throws an Error that says what is wrong with the documents.
  request() {
    const fields = this.#form.elements;
    const request = { query: fields.query.value };
    if (this.usesIndex) request.index = fields.index.value;
    else Object.assign(request, { pool: documentsOf(fields.documents.value), ranked: fields.ranked.checked });
    if (!this.usesIndex && request.pool.every((document) => document.score !== undefined)) delete request.ranked;
    request.budget = Number(fields.budget.value);
    request.k = Number(fields.k.value);
    if (fields.method.value) request.method = fields.method.value;
    for (const name of ["batch_size", "deadline_ms", ...(this.usesIndex ? ["depth"] : [])]) {
      if (fields[name].value) request[name] = Number(fields[name].value);
    }
    request.reuse = false; // otherwise a second request would find its scores known, and show no calls
    request.return_documents = true;
    return request;
  }

  offer(indexes, unreadable) {
    const select = find("index");
    const chosen = select.value;
    select.replaceChildren(...indexes.map(({ name, count }) => new Option(`${name} (${count.toLocaleString("en-US")})`, name)));
    if (indexes.some(({ name }) => name === chosen)) select.value = chosen;
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
      if (this.#asked && !this.paid && this.#form.checkValidity()) pending = setTimeout(onMoved, 300);
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
  }

  #useExample() {
    const { query, documents, budget, k } = this.#form.elements;
    query.value = EXAMPLE.query;
    documents.value = EXAMPLE.documents.join("\n");
    for (const [field, value] of [[budget, 5], [k, 4]]) {
      field.value = value;
      this.#form.querySelector(`[data-of=${field.id}]`).value = value;
    }
  }
}

// Parses a JSON array, NDJSON, or one text per line. Every document gets an id, by which the page finds it again.
export function documentsOf(pasted) {
  const text = pasted.trim();
  if (!text) throw new Error("Paste some documents first: one a line, or as JSON.");
  const lines = text.split("\n").filter((line) => line.trim());
  let documents;
  try {
    if (text.startsWith("[")) documents = JSON.parse(text);
    else if (text.startsWith("{")) documents = lines.map((line) => JSON.parse(line));
    else documents = lines;
  } catch (error) {
    throw new Error(`The documents begin like JSON, but are not: ${error.message}`);
  }
  return documents.map((document, position) => {
    const given = typeof document === "string" ? { text: document } : document;
    if (typeof given !== "object" || given === null) throw new Error(`Document ${position + 1} is neither a text nor an object.`);
    const { _id, ...rest } = given; // _id as in BEIR
    return { ...rest, id: String(given.id ?? _id ?? position + 1) };
  });
}
