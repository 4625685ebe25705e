// An answer, as the chart and the lists need it.

export class Selection {
  // pool: of the explanation, null for several queries.
  constructor({ documents, rounds, pool }) {
    this.relevance = pool?.relevance ?? [];
    this.std = pool?.std ?? [];
    this.prior = pool?.first_relevance ?? [];
    this.rounds = rounds;
    this.ids = documents.map(({ id }) => id);
    this.selected = new Set(documents.map(({ retrieval_rank: rank }) => rank - 1));
    this.calls = rounds.flatMap(({ round, calls }) => calls.map((call) => ({ ...call, round })));
    this.asked = new Map(this.calls.map((call) => [call.retrieval_rank - 1, call]));
  }

  // The call for a document of the set; of several queries, for the one that it answers best. Undefined if there was none.
  callOf({ retrieval_rank: rank, query }) {
    return this.calls.find((call) => call.retrieval_rank === rank && call.query === query);
  }

  // Pairs of a number of calls and the ids of the set by then: before each round, and at the end.
  get sets() {
    let made = 0;
    const before = this.rounds.map(({ ids, calls }) => {
      made += calls.length;
      return [made - calls.length, ids];
    });
    return [...before, [made, this.ids]];
  }

  // Whether its score is known: it was read, it is the copy of one that was, or its score came with the request.
  isScored(position) {
    return this.std[position] === 0;
  }

  // The kind of mark for a candidate; null for one that was neither read nor chosen.
  kind(position) {
    const inside = this.selected.has(position);
    if (this.isScored(position)) return inside ? "scored-in" : "scored-out";
    return inside ? "inferred-in" : null;
  }

  // The lowest relevance of the set; null if nothing is left out.
  get boundary() {
    const inside = [...this.selected].map((position) => this.relevance[position]).filter((relevance) => relevance !== null);
    return inside.length && this.selected.size < this.relevance.length ? Math.min(...inside) : null;
  }
}
