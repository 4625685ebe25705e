/** Bodies of requests: a selection with its vectors, and documents as NDJSON. */

import type { PoolBody, PoolDocument, SelectRequest, UploadedDocument, VectorBlock } from "./schema.ts";

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

/** The body of POST /select. Throws a RangeError if there are not as many embeddings as documents. */
export function selection(query: Query, options: SelectOptions): Record<string, unknown> {
  const { pool, embeddings, features, query_embedding, ...rest } = options;
  const body: Record<string, unknown> = { ...(typeof query === "string" ? { query } : { queries: query }), ...rest };
  if (query_embedding !== undefined) body["query_embedding"] = block([query_embedding], [query_embedding.length]);
  if (pool === undefined) return body;
  const documents = pool.map((given) => (typeof given === "string" ? { text: given } : plain(given)));
  body["pool"] = {
    documents,
    ...(embeddings === undefined ? {} : { embeddings: matrix(embeddings, pool.length) }),
    ...(features === undefined ? {} : { features }),
  };
  return body;
}

/** Documents, a line each. */
export function line(document: Uploaded): string {
  return `${JSON.stringify(plain(document))}\n`;
}

/** The lines of documents that are read as they are sent. `failed` learns what reading them throws. */
export function lines(
  documents: Iterable<Uploaded> | AsyncIterable<Uploaded>,
  failed: (error: unknown) => void,
): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder();
  const iterator = (async function* () {
    yield* documents;
  })();
  return new ReadableStream({
    async pull(controller) {
      try {
        const next = await iterator.next();
        if (next.done) controller.close();
        else controller.enqueue(encoder.encode(line(next.value)));
      } catch (error) {
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
