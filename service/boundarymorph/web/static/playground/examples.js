// What the page offers to try: an example that needs no index, and queries for the index of `make demo`.

export const DEMO = "python-docstrings";

export const QUERIES = [
  "compare two texts line by line",
  "convert a string to a number",
  "parse command line arguments",
  "work with dates, times and time zones",
];

// What the form holds at first for each source.
export const USUAL = {
  example: { query: "does exercise help people sleep better?", budget: "5", k: "5" },
  index: { query: "", budget: "50", k: "50" },
  pool: { query: "", budget: "10", k: "10" },
};

export const ARTICLES = [
  ["Coffee in the afternoon", "Six hours later half of the caffeine is still in the blood."],
  ["Do sharks sleep?", "Some kinds swim all their lives, and rest one half of the brain."],
  ["The night train is back", "Two new lines with beds and breakfast, from Brussels to Berlin and from Paris to Vienna."],
  ["Let sleeping dogs lie", "Where the saying comes from, and why dogs twitch in their dreams."],
  ["Fit people fall asleep sooner", "People who exercise regularly need thirteen minutes less to fall asleep, a survey finds."],
  ["Yoga before bedtime", "Half an hour of gentle exercise in the evening helps poor sleepers to sleep through the night."],
  ["A longer breath for singers", "Five minutes a day train the lungs and relax the jaw."],
  ["Which mattress?", "Seventeen mattresses in a test, from soft to firm."],
  ["What tenants can ask for", "A letter to a landlord who does not repair the heating."],
  ["A hotel without windows", "Our reporter slept in a former bunker."],
  ["Lifting weights, sleeping through", "Older people sleep better after twelve weeks of weight training, a kind of exercise that many avoid."],
  ["Sleeping bags for cold nights", "Twelve bags in a test: which ones keep you warm at ten below zero."],
  ["One workout, one good night", "A single workout brings more deep sleep in the night that follows, most of all to people who rarely exercise."],
  ["A brisk walk against insomnia", "Ten weeks of exercise helped people with insomnia: they sleep almost an hour longer."],
  ["Sleeping sickness in retreat", "Traps for the tsetse fly have helped many villages."],
  ["What your laptop does at night", "Some computers wake up and download updates. How to turn that off."],
  ["Exercise and back pain", "Stretching after a day at the desk: ten exercises with pictures."],
  ["Babies who wake at three", "Parents tell what worked, and what did not."],
  ["Stock options: when to exercise them", "A tax adviser answers readers' questions."],
  ["Naps at the office", "A nap of twenty minutes makes the afternoon easier, say firms that have tried it."],
  ["Old exercise books", "A collector shows what children wrote a hundred years ago."],
  ["Evening training does not keep you awake", "Athletes who exercise at nine in the evening fall asleep as fast as on their rest days."],
].map(([title, text]) => ({ title, text }));
