// A selection as it unfolded: one frame a round, from what the stream told.

export class Frame {
  // relevance, std: of each candidate, in retrieval order. rounds: the calls so far, by round.
  constructor({ relevance, std, rounds, ids, loss }) {
    Object.assign(this, { relevance, std, rounds, ids, loss });
    this.calls = rounds.flat();
    this.asked = new Map(rounds.flatMap((calls, round) => calls.map((call) => [call.retrieval_rank - 1, { ...call, round: round + 1 }])));
    this.latest = new Set((rounds.at(-1) ?? []).map((call) => call.retrieval_rank - 1));
  }

  // Positions of the set, once it is known where in the pool the ids are.
  locate(positions) {
    this.selected = new Set(this.ids.map((id) => positions.get(id)));
    return this;
  }

  isScored(position) {
    return this.std[position] === 0;
  }

  // What a mark for the candidate looks like.
  kind(position) {
    const inside = this.selected.has(position);
    if (this.isScored(position)) return inside ? "scored-in" : "scored-out";
    return inside ? "inferred-in" : "unasked";
  }

  // Between the relevances of the last document that fits and of the next one; null where there is no next one.
  get boundary() {
    const size = this.selected.size;
    const sorted = this.relevance.filter((relevance) => relevance !== null).sort((a, b) => b - a);
    return size && size < sorted.length ? (sorted[size - 1] + sorted[size]) / 2 : null;
  }
}

export class Unfolding {
  #frames = [];
  #rounds = [];

  // Takes an event "round"; what it says of the last round belongs to the moment after it.
  add(event) {
    if (event.calls.length) this.#rounds.push(event.calls);
    this.#frames.push(this.#frame(event, event.expected_loss));
  }

  // Takes the answer; the frames, of which the last is the answer.
  end(answer) {
    const { pool } = answer;
    this.#rounds = answer.rounds.map(({ calls }) => calls);
    const ids = answer.documents.map(({ id }) => id);
    this.#frames[this.#rounds.length] = this.#frame({ ...pool, ids }, answer.expected_loss);
    const positions = new Map(pool.ids.map((id, position) => [id, position]));
    return this.#frames.slice(0, this.#rounds.length + 1).map((frame) => frame.locate(positions));
  }

  #frame({ relevance, std, ids }, loss) {
    return new Frame({ relevance, std, ids, loss, rounds: [...this.#rounds] });
  }
}
