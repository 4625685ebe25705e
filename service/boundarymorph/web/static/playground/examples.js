// What the page offers to try: queries for the index of `make demo`, and a pool in which the best documents are not first.

import { element, find } from "./dom.js";

export const DEMO = "python-docstrings";

export const QUERIES = [
  "convert a string to a number",
  "parse command line arguments",
  "work with dates, times and time zones",
  "compare two texts line by line",
];

export const POOL = {
  query: "does exercise help people sleep better?",
  budget: 5,
  k: 5,
  documents: [
    "Sleeping bags for alpine use: a survey of manufacturers.",
    "Sleep and recovery of shift workers who walk to work.",
    "Evening exercise does not keep trained athletes awake: they fall asleep as fast as on rest days.",
    "The history of the sleeping car on European railways.",
    "Sleeping sickness and the tsetse fly: a review.",
    "How to exercise your rights as a tenant.",
    "Sleep mode and battery life of portable computers.",
    "A catalogue of exercises for violin students.",
    "Aerobic exercise improves the quality of sleep in people with insomnia.",
    "Resistance training helps older adults sleep better: a meta-analysis.",
    "Exercise books and their paper in nineteenth-century schools.",
    "Regular exercise shortens the time that people need to fall asleep.",
    "Yoga before bedtime helps poor sleepers to sleep through: a randomised trial.",
    "Naps and the sprint performance of football players.",
  ],
};

// Buttons for the queries; onTry is called with the one that is pressed.
export function offerQueries(onTry) {
  const buttons = QUERIES.map((query) => {
    const button = element("button", { type: "button", className: "plain" }, query);
    button.addEventListener("click", () => onTry(query));
    return button;
  });
  find("tries").replaceChildren("Try", ...buttons);
  find("tries").hidden = false;
}
