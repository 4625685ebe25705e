// The documents of the answer, beside the documents of plain reranking.

import { decimal, element, find, number, plural } from "./dom.js";
import { from, row, tag, title } from "./rows.js";

const WHOLE = 10; // documents of a set that is shown whole; of larger ones the differences come first
const FIRST = 6; // rows at first

// comparison: null without a comparison. queries: the queries of the request.
export function showSets(answer, comparison, queries) {
  const { calls } = comparison ?? {};
  const ours = answer.documents.map((document) => ({ document, rank: document.retrieval_rank, row: ownRow(answer, document, comparison, queries) }));
  find("sets").classList.toggle("alone", !comparison);
  find("ours-title").textContent = comparison ? `BoundaryMORPH, the same ${plural(calls, "score")}` : "The documents";
  find("common").hidden = true;
  if (!comparison) return fill({ ours: ours.map((each) => each.row()) });
  document.querySelector(".switch").firstElementChild.textContent = calls ? `The first ${number(calls)}` : "The search";
  find("plain-title").textContent = calls ? `${plural(calls, "score")} spent on the first ${number(calls)}` : "The first search results";
  const whole = comparison.ours.length <= WHOLE;
  const own = new Set(comparison.onlyOurs);
  const others = new Set(comparison.onlyPlain);
  const plain = comparison.plain.map((id, position) => ({ id, row: () => plainRow(id, position, comparison, others.has(id), queries) }));
  fill({
    plain: plain.filter(({ id }) => whole || others.has(id)).map((each) => each.row()),
    ours: ours.filter(({ document }) => whole || own.has(document.id)).map((each) => each.row()),
  });
  const common = ours.filter(({ document }) => !own.has(document.id));
  find("common").hidden = whole || !common.length;
  find("common").open = false;
  find("common").firstElementChild.textContent = `${plural(common.length, "document")} in both`;
  find("common").lastElementChild.replaceChildren(...common.map((each) => each.row()));
}

function ownRow(answer, document, comparison, queries) {
  const read = document.source === "cross_encoder";
  const different = comparison?.onlyOurs.includes(document.id);
  const estimate = `${decimal(document.relevance)} ± ${decimal(document.std)}`;
  return () =>
    row(document, queries[document.query ?? 0], {
      place: document.rank,
      facts: [tag(read ? "read" : `estimated ${estimate}`, read ? "read" : "estimated"), from(document.retrieval_rank)],
      worth: comparison ? comparison.score(document.id) : document.relevance,
      different,
      explanation: [
        queries.length > 1 ? `It answers “${queries[document.query]}”.` : "",
        read ? why(answer, document) : `The scorer had not read it. Its relevance was estimated at ${estimate}.`,
        comparison && !read ? `Its score, read afterwards: ${decimal(comparison.score(document.id), 3)}.` : "",
      ].filter(Boolean).join(" "),
    });
}

function plainRow(id, position, comparison, different, queries) {
  const rank = comparison.ranks.get(id);
  const read = rank <= comparison.calls;
  return row(comparison.documents.get(id), queries[0], {
    place: position + 1,
    facts: [tag(read ? "read" : "not read", read ? "read" : "estimated"), from(rank)],
    worth: comparison.score(id),
    different,
    explanation: read ? "Plain reranking read it, as one of the first." : "Plain reranking did not read it. It stays where the search had it.",
  });
}

function why(answer, document) {
  const round = answer.rounds.find(({ calls }) => calls.some(({ id, query }) => id === document.id && query === document.query));
  const score = `Score ${decimal(document.cross_encoder_score, 3)}`;
  if (!round) return `${score}, known without a call.`;
  const call = round.calls.find(({ id, query }) => id === document.id && query === document.query);
  const counterpart = answer.documents.find(({ id }) => id === call.counterpart);
  return `${score}, read in round ${round.round}${call.counterpart ? `, as it was open whether it or ${counterpart ? `“${title(counterpart)}”` : call.counterpart} belongs in the set` : ""}.`;
}

// Shows the first rows of each side, and the others at the press of a button.
function fill(sides) {
  const hidden = Object.entries(sides).flatMap(([side, rows]) => {
    find(side).querySelector("ol").replaceChildren(...rows);
    const others = rows.slice(rows.length > WHOLE ? FIRST : WHOLE);
    for (const other of others) other.hidden = true;
    return others;
  });
  const [rest, count] = [find("rest"), Math.max(...Object.values(sides).map((rows) => rows.filter((each) => each.hidden).length))];
  rest.hidden = !hidden.length;
  rest.textContent = `Show the other ${number(count)}`;
  rest.onclick = () => {
    for (const each of hidden) each.hidden = false;
    const visible = hidden.find((each) => each.offsetParent); // on a phone one side is shown at a time
    visible?.querySelector("summary").focus(); // the button goes
    rest.hidden = true;
  };
}

// The sums below the columns. words: why there are none. people: whether estimates are of relevance to people.
export function showTotals(comparison, words, people) {
  find("judged").textContent = words;
  if (!comparison) return document.querySelector("#sets .totals").replaceChildren();
  const count = comparison.ours.length;
  const totals = [["plain", comparison.plain], ["ours", comparison.ours]].map(([side, ids]) => {
    const bar = element("span", { className: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", comparison.sum(ids) / Math.max(count, 1));
    return element("p", { className: `total ${side}` }, "Total ", element("b", {}, decimal(comparison.sum(ids), 1)), ` of ${number(count)}`, bar);
  });
  document.querySelector("#sets .totals").replaceChildren(...totals);
  const { readAfterwards: more } = comparison;
  find("judged").textContent =
    "A score is the scorer's verdict, from 0 to 1. “From” is the place in the search. " +
    (people ? "An estimate predicts what people find relevant, by scores, words, and meaning. " : "") +
    (more ? `For the totals, the scorer has also read ${plural(more, "chosen document")} that it had not read before.` : "The scorer has read every document of both sets.");
}

// On a phone one set is shown at a time.
export function offerSwitch() {
  const buttons = ["plain", "ours"].map((side) => {
    const button = element("button", { type: "button" }, "BoundaryMORPH");
    button.addEventListener("click", () => choose(side));
    return [side, button];
  });
  const choose = (side) => {
    find("sets").dataset.side = side;
    for (const [each, button] of buttons) button.ariaPressed = String(each === side);
  };
  document.querySelector(".switch").replaceChildren(...buttons.map(([, button]) => button));
  choose("ours");
}
