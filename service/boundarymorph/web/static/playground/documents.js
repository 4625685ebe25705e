// Lists of documents that open to show their texts and why they are there.

import { decimal, element, find, number, shortened } from "./dom.js";

const FIRST = 12; // documents of the set that are listed at first

// The set, and why each document is in it. queries: of the request, if there are several.
export function showSet(answer, selection, texts, queries) {
  const rows = (documents) => documents.map((document) => {
    const scored = document.source === "cross_encoder";
    const call = selection.callOf(document);
    const answers = queries && `It answers “${shortened(queries[document.query])}”. `;
    const facts = [
      tag(scored ? "read" : `estimated ± ${decimal(document.std)}`, scored ? "scored" : "inferred"),
      element("span", { className: "from" }, `from rank ${number(document.retrieval_rank)}`),
    ];
    return row(document.id, document.relevance, facts, (answers ?? "") + reason(document, call, texts), texts);
  });
  const [first, others] = [answer.documents.slice(0, FIRST), answer.documents.slice(FIRST)];
  find("set").replaceChildren(...rows(first));
  find("rest").hidden = !others.length;
  find("rest").textContent = `Show the other ${number(others.length)}`;
  find("rest").onclick = () => {
    const more = rows(others);
    find("set").append(...more);
    more[0].querySelector("summary").focus(); // the button goes
    find("rest").hidden = true;
  };
}

// All calls as a table, also for screen readers.
export function showCalls({ calls }, texts, queries) {
  const asked = (call) => (queries ? [shortened(queries[call.query])] : []);
  const head = ["round", "document", "retrieval rank", "score", "why", ...(queries ? ["query"] : [])];
  const rows = calls.map((call) =>
    element("tr", {}, ...[call.round, texts.title(call.id), number(call.retrieval_rank), decimal(call.score, 3), why(call, texts), ...asked(call)].map((cell) => element("td", {}, String(cell)))),
  );
  const table = element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...head.map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, ...rows),
  );
  const holder = element("div", { className: "scrolled", tabIndex: 0, role: "region", "aria-label": "All calls" }, table);
  find("all-calls").lastElementChild.replaceChildren(holder);
  find("all-calls").hidden = !rows.length;
}

// relevance: null if unknown. facts: elements beside the title. text: read when the row is opened.
export function row(id, relevance, facts, explanation, texts) {
  const bar = element("span", { className: "bar", "aria-hidden": "true" });
  bar.style.setProperty("--share", relevance ?? 0);
  const details = element(
    "details",
    {},
    element("summary", {}, element("span", { className: "worth" }, decimal(relevance)), bar, element("span", { className: "title", dir: "auto" }, texts.title(id)), ...facts),
  );
  details.addEventListener("toggle", () => open(details, id, explanation, texts), { once: true });
  return element("li", {}, details);
}

async function open(details, id, explanation, texts) {
  const text = element("p", { className: "text", tabIndex: 0, dir: "auto" }, "…");
  details.append(element("p", { className: "why" }, explanation), element("p", { className: "id" }, id), text);
  try {
    text.textContent = await texts.text(id);
  } catch (error) {
    text.textContent = `The text cannot be read: ${error.message}`;
  }
}

export function tag(words, kind) {
  return element("span", { className: `tag ${kind}` }, words);
}

function reason(document, call, texts) {
  if (call) return `Scored ${decimal(call.score, 3)} in round ${call.round}: ${why(call, texts)}.`;
  if (document.source === "cross_encoder") return `Its score, ${decimal(document.cross_encoder_score, 3)}, was known without a call.`;
  return `The scorer has not read it. Its relevance is estimated at ${decimal(document.relevance)} ± ${decimal(document.std)}.`;
}

function why(call, texts) {
  if (call.rival) return `in or out of the set was open between it and ${texts.title(call.rival)}`;
  if (call.value !== null && call.value !== undefined) return "its score was expected to change most at the boundary";
  return "there was nothing to compare yet";
}
