// Chooses the frame to show, by hand or automatically.

import { find, number, plural } from "./dom.js";

const PAUSE = 700; // milliseconds per round

export class Replay {
  #frames = [];
  #timer = null;
  #round = find("round");
  #onShow;

  constructor(onShow) {
    this.#onShow = onShow;
    this.#round.addEventListener("input", () => this.#go(Number(this.#round.value)));
    find("back").addEventListener("click", () => this.#go(this.#at - 1));
    find("forth").addEventListener("click", () => this.#go(this.#at + 1));
    find("play").addEventListener("click", () => (this.#timer ? this.#stop() : this.#play()));
  }

  begin(frames) {
    this.#frames = frames;
    this.#round.max = frames.length - 1;
    this.#go(frames.length - 1);
  }

  // Shows the current frame again, for instance when colours have changed.
  again() {
    if (this.#frames.length) this.#show();
  }

  get #at() {
    return Number(this.#round.value);
  }

  #go(round) {
    this.#stop();
    this.#round.value = Math.max(0, Math.min(this.#frames.length - 1, round));
    this.#show();
  }

  #play() {
    if (this.#at === this.#frames.length - 1) this.#round.value = 0;
    find("play").textContent = "Pause";
    this.#show();
    this.#timer = setInterval(() => {
      this.#round.value = this.#at + 1;
      this.#show();
      if (this.#at === this.#frames.length - 1) this.#stop();
    }, PAUSE);
  }

  #stop() {
    clearInterval(this.#timer);
    this.#timer = null;
    find("play").textContent = "Play";
  }

  #show() {
    const frame = this.#frames[this.#at];
    const said =
      this.#at === 0
        ? "Before the first call"
        : `Round ${number(this.#at)} of ${number(this.#frames.length - 1)}: ${number(frame.calls.length)} of ${plural(this.#frames.at(-1).calls.length, "call")}`;
    find("moment").textContent = said;
    this.#round.setAttribute("aria-valuetext", said);
    find("back").disabled = this.#at === 0;
    find("forth").disabled = this.#at === this.#frames.length - 1;
    find("play").disabled = this.#frames.length < 2;
    this.#onShow(frame);
  }
}
