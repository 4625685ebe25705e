// The state of the form in the address of the page, so that it can be shared, reloaded, and left by "back".
// Documents that were pasted and keys never get there.

import { USUAL } from "./examples.js";

const FIELDS = ["source", "query", "index", "budget", "k", "method", "depth", "filter", "distinct", "also"];
const SWITCHES = ["hybrid", "auto", "ranked"];

// Writes what the form holds; "replace" while a slider moves, so that "back" does not stop at every step.
export function remember(form, how) {
  const state = new URLSearchParams();
  for (const name of FIELDS) {
    const { value, disabled } = form.elements[name];
    if (value && !disabled) state.set(name, value);
  }
  for (const name of SWITCHES) {
    const { checked, defaultChecked, disabled } = form.elements[name];
    if (checked !== defaultChecked && !disabled) state.set(name, Number(checked));
  }
  const search = `?${state}`;
  if (search === location.search) return;
  history[how === "replace" ? "replaceState" : "pushState"](null, "", search);
}

// Fills in the fields from the address, and other fields with the usual values. The index stays if the address names no index.
export function restore(form) {
  const state = new URLSearchParams(location.search);
  const source = state.get("source") in USUAL ? state.get("source") : state.has("index") ? "index" : "example";
  const usual = { ...USUAL[source], source };
  for (const name of FIELDS) {
    const field = form.elements[name];
    if (name === "source") field.value = source;
    else if (state.has(name)) field.value = field.type === "number" && isNaN(state.get(name)) ? "" : state.get(name);
    else if (name !== "index") field.value = usual[name] ?? "";
  }
  for (const name of SWITCHES) {
    const field = form.elements[name];
    field.checked = state.has(name) ? state.get(name) !== "0" : field.defaultChecked;
  }
}

// The first field of the address, as [name, value], whose value the form cannot hold; undefined if all fit.
export function refused(form) {
  const choices = (name) => FIELDS.includes(name) && ["number", "select-one"].includes(form.elements[name].type);
  return [...new URLSearchParams(location.search)].find(([name, value]) => value && choices(name) && !form.elements[name].value);
}
