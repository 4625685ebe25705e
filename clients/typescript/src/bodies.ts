/** Bodies of requests: a selection with its vectors, and documents as NDJSON. */

import { InvalidArgument } from "./errors.ts";
import type { PoolBody, PoolDocument, SelectRequest, UploadedDocument, VectorBlock } from "./schema.ts";

const HALVES = /\p{Surrogate}/gu; // of surrogate pairs, without the other
const ESCAPED_HALVES = /(?<=(?<!\\)(?:\\\\)*)\\ud[89a-f][0-9a-f]{2}/g; // as JSON.stringify writes them

export type Vector = ArrayLike<number>;

/** A query, or several with one budget and one set, of what answers any of them best. */
export type Query = string | readonly (string | { query: string; weight?: number })[];

/** A candidate of one request. Its embedding, if it has one, may be a typed array. */
export type Candidate = Omit<PoolDocument, "embedding"> & { embedding?: Vector | null };

/** A document for an index. */
export type Uploaded = Omit<UploadedDocument, "embedding"> & { embedding?: Vector | null };

type Named = "query" | "queries" | "index" | "pool" | "query_embedding" | "depth" | "filter" | "hybrid";
type Common = Partial<Omit<SelectRequest, Named>> & {
  /** [d], used instead of encoding the query. */
  query_embedding?: Vector;
};
type OfIndex = Partial<Pick<SelectRequest, "depth" | "filter" | "hybrid">> & {
  /** Take the candidates from this index. */
  index: string;
  pool?: never;
  embeddings?: never;
  features?: never;
};
type OfPool = {
  /** Take these candidates, as texts or documents, in the order of your retriever. */
  pool: readonly (string | Candidate)[];
  /** Of the pool's documents [N, d], sent as one block of float32. */
  embeddings?: readonly Vector[];
  /** Signals of yours by name, a number a document of the pool, null where it has none. */
  features?: PoolBody["features"];
  index?: never;
};

/** Options of a selection, under the names of POST /select. Exactly one of `index` and `pool` is needed. */
export type SelectOptions = Common & (OfIndex | OfPool);

/** A request of a batch: its query with the options of a selection. */
export type BatchRequest = SelectOptions & { query: Query };

/** The body of POST /select. Throws a RangeError if there are not as many embeddings as documents. */
export function selection(query: Query, options: SelectOptions): Record<string, unknown> {
  const { pool, embeddings, features, query_embedding, ...rest } = options;
  const body: Record<string, unknown> = { ...(typeof query === "string" ? { query } : { queries: query }), ...rest };
  if (query_embedding !== undefined) body["query_embedding"] = block([query_embedding], [query_embedding.length]);
  if (pool === undefined) return body;
  const documents = listed(pool, "pool").map((given) => (typeof given === "string" ? { text: given } : plain(given)));
  body["pool"] = {
    documents,
    ...(embeddings === undefined ? {} : { embeddings: matrix(embeddings, pool.length) }),
    ...(features === undefined ? {} : { features: signals(features) }),
  };
  return body;
}

/** Documents for a pool with the scores that are known of the first of them. Throws a RangeError for more scores. */
export function scored(documents: readonly (string | Candidate)[], scores: ArrayLike<number>): Candidate[] {
  listed(documents, "documents");
  if (scores.length > documents.length) {
    throw new RangeError(`there are ${scores.length} scores for ${documents.length} documents`);
  }
  return documents.map((given, position) => ({
    ...(typeof given === "string" ? { text: given } : given),
    ...(position < scores.length ? { cross_encoder_score: scores[position] } : {}),
  }));
}

/** The documents of a pool. Throws InvalidArgument for anything else. */
function listed(given: readonly (string | Candidate)[], name: string): readonly (string | Candidate)[] {
  if (!Array.isArray(given)) throw new InvalidArgument(`${name}: give an array of texts or documents`);
  const wrong = given.findIndex((item) => typeof item !== "string" && (typeof item !== "object" || item === null || Array.isArray(item)));
  if (wrong >= 0) throw new InvalidArgument(`${name}[${wrong}] is neither a text nor a document with a text`);
  return given;
}

/** NaN is no signal, as null. */
function signals(features: NonNullable<PoolBody["features"]>): PoolBody["features"] {
  const known = (value: number | null) => (value === null || Number.isNaN(value) ? null : value);
  return Object.fromEntries(Object.entries(features).map(([name, values]) => [name, values.map(known)]));
}

/** JSON, with U+FFFD for each half of a surrogate pair that lacks the other. Throws InvalidArgument for what JSON would
 * leave out, make null of or make empty: numbers that are not finite, bigints, maps and sets. */
export function encoded(value: unknown): string {
  const text = JSON.stringify(value, function (this: unknown, key: string, given: unknown) {
    const known = typeof given !== "number" || Number.isFinite(given);
    if (known && typeof given !== "bigint" && !(given instanceof Map) && !(given instanceof Set)) return given;
    const owner = this as { id?: unknown };
    const document = typeof owner.id === "string" ? ` of ${JSON.stringify(owner.id)}` : "";
    throw new InvalidArgument(`${JSON.stringify(key)}${document} is ${shown(given)}, which JSON does not have`);
  });
  return text.replace(ESCAPED_HALVES, "\\ufffd");
}

/** With U+FFFD for each half of a surrogate pair. */
export function formed(text: string): string {
  return text.replace(HALVES, "\ufffd");
}

function shown(given: unknown): string {
  return given instanceof Map ? "a Map" : given instanceof Set ? "a Set" : String(given);
}

/** A document and a line feed. Throws InvalidArgument, which names the document. */
export function line(document: Uploaded): string {
  try {
    return `${encoded(plain(document))}\n`;
  } catch (error) {
    if (!(error instanceof InvalidArgument)) throw error;
    throw new InvalidArgument(`document ${JSON.stringify(document.id)} cannot be uploaded: ${error.message}`);
  }
}

/** The lines of documents that are read as they are sent. `failed` learns what reading them throws. */
export function lines(
  documents: Iterable<Uploaded> | AsyncIterable<Uploaded>,
  failed: (error: unknown) => void,
): ReadableStream<Uint8Array> {
  const items = Object(documents) as object;
  if (typeof documents === "string" || documents instanceof Map || !(Symbol.iterator in items || Symbol.asyncIterator in items)) {
    throw new InvalidArgument("documents: give an array, or another iterable, of documents");
  }
  const encoder = new TextEncoder();
  let sent = 0;
  const iterator = (async function* () {
    yield* documents;
  })();
  return new ReadableStream({
    async pull(controller) {
      try {
        const next = await iterator.next();
        if (next.done) controller.close();
        else controller.enqueue(encoder.encode(line(next.value)));
        sent += 1;
      } catch (thrown) {
        const before = `; ${sent} documents before it were sent, and some of them may have been written`;
        const error = thrown instanceof InvalidArgument ? new InvalidArgument(thrown.message + before) : thrown;
        failed(error);
        controller.error(error);
      }
    },
    async cancel() {
      await iterator.return(undefined);
    },
  });
}

/** With its embedding as a list, which JSON makes of no typed array. */
function plain<Document extends { embedding?: Vector | null }>(document: Document): Document {
  return document.embedding ? { ...document, embedding: Array.from(document.embedding) } : document;
}

function matrix(rows: readonly Vector[], documents: number): VectorBlock {
  const dimension = rows[0]?.length ?? 0;
  if (rows.length !== documents) throw new RangeError(`there are ${rows.length} embeddings for ${documents} documents`);
  if (rows.some((row) => row.length !== dimension)) throw new RangeError("the embeddings differ in length");
  return block(rows, [rows.length, dimension]);
}

/** base64 of float32, little-endian whatever the machine. */
function block(rows: readonly Vector[], shape: number[]): VectorBlock {
  const bytes = new Uint8Array(4 * rows.reduce((total, row) => total + row.length, 0));
  const view = new DataView(bytes.buffer);
  let offset = 0;
  for (const row of rows) {
    for (let column = 0; column < row.length; column++, offset += 4) view.setFloat32(offset, row[column]!, true);
  }
  return { data: base64(bytes), shape, dtype: "float32" };
}

function base64(bytes: Uint8Array): string {
  const pieces: string[] = [];
  for (let start = 0; start < bytes.length; start += 0x8000) {
    pieces.push(String.fromCharCode(...bytes.subarray(start, start + 0x8000)));
  }
  return btoa(pieces.join(""));
}
