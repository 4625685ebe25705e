// A selection in progress: one frame per round.

export class Frame {
  // relevance, std: of each candidate, in retrieval order. rounds: the calls so far, by round. ranks: of the set.
  constructor({ relevance, std, rounds, ranks }) {
    Object.assign(this, { relevance, std, rounds });
    this.selected = new Set(ranks.map((rank) => rank - 1));
    this.calls = rounds.flat();
    this.asked = new Map(rounds.flatMap((calls, round) => calls.map((call) => [call.retrieval_rank - 1, { ...call, round: round + 1 }])));
    this.latest = new Set((rounds.at(-1) ?? []).map((call) => call.retrieval_rank - 1));
  }

  // The call for a document of the set; of several queries, for the one that it answers best. Undefined if there was none.
  callOf({ retrieval_rank: rank, query }) {
    const call = this.asked.get(rank - 1);
    if (!call || (query ?? null) === null || call.query === query) return call;
    const round = this.rounds.findIndex((calls) => calls.some((one) => one.retrieval_rank === rank && one.query === query));
    return round < 0 ? undefined : { ...this.rounds[round].find((one) => one.retrieval_rank === rank && one.query === query), round: round + 1 };
  }

  // Whether its score is known: it was read, it is the copy of one that was, or its score came with the request.
  isScored(position) {
    return this.std[position] === 0;
  }

  // The kind of mark for a candidate.
  kind(position) {
    const inside = this.selected.has(position);
    if (this.isScored(position)) return inside ? "scored-in" : "scored-out";
    return inside ? "inferred-in" : "unasked";
  }

  // The lowest relevance of the set; null if nothing is left out.
  get boundary() {
    const inside = [...this.selected].map((position) => this.relevance[position]).filter((relevance) => relevance !== null);
    return inside.length && this.selected.size < this.relevance.length ? Math.min(...inside) : null;
  }
}

export class Unfolding {
  frames = [];
  #rounds = [];

  // Adds an event "round", which also has the calls of the round before it.
  add({ calls, relevance, std, retrieval_ranks: ranks }) {
    if (calls.length) this.#rounds.push(calls);
    this.frames.push(new Frame({ relevance, std, ranks, rounds: [...this.#rounds] }));
  }

  // Adds the answer, which is the last frame.
  end({ documents, rounds, pool }) {
    const ranks = documents.map(({ retrieval_rank: rank }) => rank);
    const last = new Frame({ relevance: [], std: [], ...pool, ranks, rounds: rounds.map(({ calls }) => calls) });
    this.frames = [...this.frames.slice(0, rounds.length), last];
  }
}
