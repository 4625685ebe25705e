// Judging documents of an answer one by one, for `boundarymorph calibrate`.

import { element, find, plural } from "./dom.js";

const COUNT = 40; // documents of a query that are worth a person's time
const HEADS = 30; // of these, the best by the answer and the first by the retriever; the others are any
const GRADES = ["not relevant", "a little", "relevant", "exactly this"];

export class Judging {
  #service;
  #about = null; // the answer, its request and texts
  #ids = [];
  #place = 0;
  #given = new Map(); // grades by id, as far as the service has them
  #sending = false;

  constructor(service) {
    this.#service = service;
    find("judge").addEventListener("click", () => this.#begin());
    find("judged").addEventListener("keydown", (event) => this.#press(event));
    find("grades").replaceChildren(
      ...GRADES.map((meaning, grade) => {
        const button = element("button", { type: "button", className: "plain", "aria-keyshortcuts": grade }, element("kbd", {}, grade), ` ${meaning}`);
        button.addEventListener("click", () => this.#grade(grade));
        return button;
      }),
    );
    for (const [id, act] of [["skip", () => this.#go(1)], ["again", () => this.#go(-1)], ["stop", () => this.#end()]]) find(id).addEventListener("click", act);
  }

  // Judgements are of indexes; for other answers nothing is offered.
  offer(request, answer, texts) {
    this.#about = { request, answer, texts };
    find("judging").hidden = request.index === undefined || !answer.pool?.ids.length;
    find("judge").hidden = false;
    find("judged").hidden = true;
    find("judging-said").textContent = "";
  }

  #begin() {
    const { relevance, ids } = this.#about.answer.pool;
    this.#ids = worthJudging(relevance).map((position) => ids[position]);
    [this.#place, this.#given] = [0, new Map()];
    find("judge").hidden = true;
    find("judged").hidden = false;
    this.#show();
  }

  async #show() {
    const id = this.#ids[this.#place];
    const { texts } = this.#about;
    find("judging-place").textContent = `Document ${this.#place + 1} of ${this.#ids.length}; ${plural(this.#given.size, "judgement")} sent`;
    for (const [grade, button] of [...find("grades").children].entries()) button.setAttribute("aria-pressed", this.#given.get(id) === grade);
    find("again").disabled = this.#place === 0;
    find("judging-text").textContent = "…";
    find("judged").focus({ preventScroll: true });
    try {
      const text = await texts.text(id);
      if (this.#ids[this.#place] !== id) return;
      find("judging-title").textContent = texts.title(id);
      find("judging-text").textContent = text;
    } catch (error) {
      this.#say(`The text cannot be read: ${error.message}`);
    }
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in GRADES) this.#grade(Number(event.key));
    else if (event.key === "ArrowRight") this.#go(1);
    else if (event.key === "ArrowLeft" && this.#place) this.#go(-1);
    else if (event.key === "Escape") this.#end();
    else return;
    event.preventDefault();
  }

  // The next document is shown once the service has kept the grade, so none is lost unnoticed.
  async #grade(grade) {
    if (this.#sending) return;
    this.#sending = true;
    const { request, answer } = this.#about;
    const id = this.#ids[this.#place];
    const relevance = answer.pool.relevance[answer.pool.ids.indexOf(id)];
    const judgment = { document: id, grade, ...(relevance === null ? {} : { relevance }) };
    try {
      await this.#service.post("judgments", { query: request.query, index: request.index, calibration: answer.calibration, judgments: [judgment] });
      this.#given.set(id, grade);
      this.#say("");
      this.#go(1);
    } catch (error) {
      this.#say(error.status === 403 ? "This key lacks the scope 'judge'." : `The judgement was not kept: ${error.message}`);
    } finally {
      this.#sending = false;
    }
  }

  #go(step) {
    this.#place += step;
    if (this.#place < this.#ids.length) this.#show();
    else this.#end();
  }

  #end() {
    find("judged").hidden = true;
    find("judge").hidden = false;
    find("judge").focus();
    const { index } = this.#about.request;
    if (this.#given.size) this.#say(`${plural(this.#given.size, "judgement")} of this query sent. With ten such queries, run: boundarymorph calibrate ${index} --update`);
  }

  #say(words) {
    find("judging-said").textContent = words;
  }
}

// Positions of documents in an order that says nothing. relevance: of each candidate, in retrieval order.
function worthJudging(relevance) {
  const best = relevance.map((value, position) => [value ?? 0, position]).sort((a, b) => b[0] - a[0]);
  const heads = new Set();
  for (let rank = 0; rank < relevance.length && heads.size < HEADS; rank++) heads.add(best[rank][1]).add(rank);
  const first = [...heads].slice(0, HEADS);
  const others = shuffled(relevance.map((_, position) => position).filter((position) => !first.includes(position)));
  return shuffled([...first, ...others.slice(0, COUNT - first.length)]);
}

function shuffled(items) {
  const mixed = [...items];
  for (let last = mixed.length - 1; last > 0; last--) {
    const other = Math.floor(Math.random() * (last + 1));
    [mixed[last], mixed[other]] = [mixed[other], mixed[last]];
  }
  return mixed;
}
