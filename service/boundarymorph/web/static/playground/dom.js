// Makes elements from data. Texts are inserted as text, never as HTML, as documents are not trusted.

export const find = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const LONGEST = 80; // characters of a title

// The first line of a text, cut where it would be too long for a title.
export function shortened(text) {
  const [line] = text.trim().split(/[\n\r\u2028\u2029]/, 1);
  const characters = [...line.slice(0, 2 * LONGEST + 2)]; // each takes one or two places
  return characters.length > LONGEST ? `${characters.slice(0, LONGEST - 1).join("").trimEnd()}…` : line;
}

// Fills a list with tabs, of which `panel` shows the chosen one. onChoose(name) is called at once and for each choice.
export function offerTabs(list, panel, names, onChoose) {
  const tabs = names.map((name) => element("button", { type: "button", role: "tab", "aria-controls": panel.id, id: `${panel.id}-${name.replaceAll(" ", "-")}` }, name));
  const choose = (chosen) => {
    for (const tab of tabs) {
      tab.ariaSelected = String(tab === chosen);
      tab.tabIndex = tab === chosen ? 0 : -1;
    }
    panel.setAttribute("aria-labelledby", chosen.id);
    onChoose(chosen.textContent);
  };
  for (const tab of tabs) tab.addEventListener("click", () => choose(tab));
  list.addEventListener("keydown", ({ key }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (!step) return;
    const next = tabs.at((tabs.indexOf(document.activeElement) + step) % tabs.length);
    choose(next);
    next.focus();
  });
  list.replaceChildren(...tabs);
  choose(tabs[0]);
}

export const number = (value) => value.toLocaleString("en-US");

export const decimal = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
