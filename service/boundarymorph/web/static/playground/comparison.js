// What plain reranking returns for the same budget: the search's first B by their scores, then the rest of the first k
// in search order. Both sets are compared by the scores of all their documents.

// calls: as many as each may make. Throws the service's errors.
export async function compare(service, request, answer, calls, signal) {
  const { query, index, filter, hybrid } = request;
  const depth = Math.min(Math.max(calls, answer.documents.length), answer.pool_size);
  const read = async (source, count) => {
    const wanted = { query, ...source, budget: count, k: count, relevance: "scorer", calibration: false, distinct: false, reuse: false };
    return count ? (await service.select(wanted, signal)).documents : [];
  };
  const given = new Map((request.pool ?? answer.documents).map((document) => [document.id, document]));
  const pooled = (ids) => read({ ranked: true, pool: ids.map((id) => given.get(id)).map(({ id, title, text }) => ({ id, title, text })) }, ids.length);
  const deep = answer.documents.filter(({ retrieval_rank: rank }) => rank > depth).map(({ id }) => id);
  const [first, others] = await Promise.all([index === undefined ? pooled(answer.pool.ids.slice(0, depth)) : read({ index, depth, filter, hybrid, return_documents: true }, depth), pooled(deep)]);
  return new Comparison(answer, calls, first, others, given);
}

export class Comparison {
  #scores;
  #first; // ids, in search order

  // first: the documents of the search that plain reranking can return; others: of the answer; all with their scores.
  // given: documents with their texts, by id, where these have none.
  constructor(answer, calls, first, others, given) {
    this.calls = calls;
    const scored = [...first, ...others];
    this.documents = new Map(scored.map((document) => [document.id, given.get(document.id) ?? document]));
    this.ranks = new Map(first.map(({ id, retrieval_rank: rank }) => [id, rank]));
    const estimates = answer.pool.ids.map((id, position) => [id, answer.pool.relevance[position]]);
    this.#scores = new Map([...estimates, ...scored.map(({ id, cross_encoder_score: score }) => [id, score])]);
    this.#first = first.toSorted((one, other) => one.retrieval_rank - other.retrieval_rank).map(({ id }) => id);
    this.ours = answer.documents.map(({ id }) => id);
    this.plain = this.plainSet(calls);
    this.onlyOurs = this.ours.filter((id) => !this.plain.includes(id));
    this.onlyPlain = this.plain.filter((id) => !this.ours.includes(id));
    const read = answer.documents.filter(({ source }) => source === "cross_encoder").map(({ id }) => id);
    const known = new Set([...this.#first.slice(0, calls), ...read]);
    this.readAfterwards = [...new Set([...this.ours, ...this.plain])].filter((id) => !known.has(id)).length;
  }

  // Of a document of either set; of others, what the answer estimates. 0 if nothing is known.
  score(id) {
    return this.#scores.get(id) ?? 0;
  }

  sum(ids) {
    return ids.reduce((total, id) => total + this.score(id), 0);
  }

  // Returns the set of plain reranking, which spends `calls` on the first documents.
  plainSet(calls) {
    const [read, rest] = [this.#first.slice(0, calls), this.#first.slice(calls)];
    return [...read.toSorted((one, other) => this.score(other) - this.score(one)), ...rest].slice(0, this.ours.length);
  }
}
