// The state of the form in the address of the page, so that it can be shared, reloaded, and left by "back".
// Documents that were pasted and keys never get there.

const FIELDS = ["source", "query", "index", "budget", "k", "method", "depth", "filter", "distinct", "also"];
const SWITCHES = ["hybrid", "auto", "ranked"];
const DEFAULTS = { source: "index" };

// Writes what the form holds; "replace" while a slider moves, so that "back" does not stop at every step.
export function remember(form, how) {
  const state = new URLSearchParams();
  for (const name of FIELDS) {
    const { value, disabled } = form.elements[name];
    if (value && value !== DEFAULTS[name] && !disabled) state.set(name, value);
  }
  for (const name of SWITCHES) {
    const { checked, defaultChecked, disabled } = form.elements[name];
    if (checked !== defaultChecked && !disabled) state.set(name, Number(checked));
  }
  const search = `?${state}`;
  if (search === location.search) return;
  history[how === "replace" ? "replaceState" : "pushState"](null, "", search);
}

// Fills in what the address holds. An index stays if the address names none.
export function restore(form) {
  const state = new URLSearchParams(location.search);
  for (const name of FIELDS) {
    const field = form.elements[name];
    if (state.has(name)) field.value = field.type === "number" && isNaN(state.get(name)) ? "" : state.get(name);
    else if (name !== "index") field.value = DEFAULTS[name] ?? field.defaultValue ?? "";
  }
  for (const name of SWITCHES) {
    const field = form.elements[name];
    field.checked = state.has(name) ? state.get(name) !== "0" : field.defaultChecked;
  }
  for (const range of form.querySelectorAll("[data-of]")) range.value = form.elements[range.dataset.of].value;
}

// The first field of the address, as [name, value], that the form had to leave empty; undefined if there is none.
export function refused(form) {
  const choices = (name) => FIELDS.includes(name) && ["number", "select-one"].includes(form.elements[name].type);
  return [...new URLSearchParams(location.search)].find(([name, value]) => value && choices(name) && !form.elements[name].value);
}
