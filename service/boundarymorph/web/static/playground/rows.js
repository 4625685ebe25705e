// Lists of documents. A row shows enough to judge the document, and opens to its text and why it is there.

import { decimal, element, number, shortened } from "./dom.js";

const WINDOW = 90; // characters in which matched words are counted
const SNIPPET = 180; // characters, of which the page shows what has room
const COMMON = new Set("a an and are as at be but by can do does for from has have how i if in into is it its my not of on or so that the their this to was what when where which who why will with you your".split(" "));

export const title = (document) => shortened(document.title?.trim() || document.text?.trim() || document.id);

// document: with id, title and text. place: in its set. facts: a tag, and where it is from. worth: a number, or null if unknown.
export function row(document, query, { place, facts, worth, explanation, different }) {
  const { title: heading, text } = document;
  const rest = heading?.trim() ? (text ?? "") : (text ?? "").trim().slice(title(document).length - 1);
  const snippet = rest.trim() && element("span", { className: "snippet", dir: "auto" }, ...marked(excerpt(rest, query), query));
  const name = heading?.trim() ? element("span", { className: "title", dir: "auto" }, title(document)) : element("span", { className: "title text", dir: "auto" }, ...marked(title(document), query));
  const details = element(
    "details",
    {},
    element(
      "summary",
      {},
      element("span", { className: "place" }, String(place)),
      element("span", { className: "main" }, name, ...facts, snippet || null),
      element("span", { className: "worth" }, decimal(worth)),
    ),
    element("p", { className: "why" }, explanation),
    element("p", { className: "id" }, document.id),
    element("p", { className: "whole", tabIndex: 0, dir: "auto" }, text || "This document has no text."),
  );
  return element("li", { className: different ? "different" : "" }, details);
}

export const tag = (words, kind) => element("span", { className: `tag ${kind}` }, words);

export const from = (rank) => element("span", { className: "from" }, `from ${number(rank)}`);

// Words are the same if they begin alike: "sleep" and "sleeping".
function stem(word) {
  const lower = word.toLowerCase();
  return lower.length > 3 ? lower.replace(/(?<=...)(?:ings?|ers?|ed|es|ly|[es])$/, "") : lower;
}

function wordsOf(text, stems) {
  return [...text.matchAll(/[\p{L}\p{N}]+/gu)].filter(([word]) => stems.has(stem(word)));
}

const stemsOf = (query) => new Set((query.match(/[\p{L}\p{N}]+/gu) ?? []).filter((word) => !COMMON.has(word.toLowerCase())).map(stem));

// The part of a text with the most words of the query.
function excerpt(text, query) {
  const line = text.trim().replaceAll(/\s+/g, " ");
  const found = wordsOf(line, stemsOf(query));
  const within = ({ index }) => new Set(found.filter((other) => other.index >= index && other.index < index + WINDOW).map(([word]) => stem(word))).size;
  const best = found.reduce((most, match) => (!most || within(match) > within(most) ? match : most), null);
  const start = best && best.index > WINDOW / 2 ? line.lastIndexOf(" ", best.index - WINDOW / 4) + 1 : 0;
  return `${start ? "… " : ""}${line.slice(start, start + SNIPPET)}`;
}

// The text as nodes, with the words of the query in bold.
function marked(text, query) {
  let end = 0;
  const nodes = wordsOf(text, stemsOf(query)).flatMap(({ 0: word, index }) => {
    const before = text.slice(end, index);
    end = index + word.length;
    return [before, element("b", {}, word)];
  });
  return [...nodes, text.slice(end)];
}
