// The state of the form in the address of the page, so that it can be shared, reloaded, and left by "back".
// Documents that were pasted and keys never get there.

const FIELDS = ["query", "index", "budget", "k", "method", "rounds", "depth", "deadline_ms", "filter", "distinct", "calibration", "also"];
const SWITCHES = ["hybrid", "auto"];

// Writes what the form holds; "replace" while a slider moves, so that "back" does not stop at every step.
export function remember(form, how) {
  const state = new URLSearchParams();
  for (const name of FIELDS) if (form.elements[name].value) state.set(name, form.elements[name].value);
  for (const name of SWITCHES) if (form.elements[name].checked) state.set(name, "1");
  const search = `?${state}`;
  if (search === location.search) return;
  history[how === "replace" ? "replaceState" : "pushState"](null, "", search);
}

// Fills in what the address holds, and returns whether there is a query among it.
export function restore(form) {
  const state = new URLSearchParams(location.search);
  for (const name of FIELDS) {
    const field = form.elements[name];
    if (!state.has(name)) field.value = field.defaultValue ?? field.value;
    else if (field.tagName !== "SELECT" || [...field.options].some(({ value }) => value === state.get(name))) field.value = state.get(name);
  }
  for (const name of SWITCHES) form.elements[name].checked = state.has(name);
  for (const range of form.querySelectorAll("[data-of]")) range.value = form.elements[range.dataset.of].value;
  return state.has("query");
}
