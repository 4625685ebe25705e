import { type Answer, answered, type Call, type Connection } from "./attempts.ts";
import {
  type BatchRequest, type Candidate, encoded, formed, line, lines, type Query, scored, selection, type SelectOptions,
  type Uploaded,
} from "./bodies.ts";
import { BoundaryMorphError, InvalidArgument, ofResponse } from "./errors.ts";
import { events, parsed } from "./events.ts";
import type {
  CreateIndex,
  DeleteReport,
  IndexDescription,
  IndexList,
  Ready,
  RoundEvent,
  SelectResponse,
  StoredDocument,
  DocumentPage,
  IndexStatistics,
  UploadReport,
} from "./schema.ts";

export interface ClientOptions {
  /** By default http://127.0.0.1:8080. */
  baseUrl?: string;
  apiKey?: string;
  /** Milliseconds for a call, with all its attempts and the pauses between them; 60,000 by default. */
  timeout?: number;
  /** Attempts after the first, at most, 3 by default: of what was refused with 429 or 503, after its `Retry-After`, and
   * where the connection failed, unless something might be done twice by it. */
  retries?: number;
  /** In place of the global one. */
  fetch?: typeof globalThis.fetch;
}

export interface CallOptions {
  /** Ends the call, and the service's work for it, when it is aborted; its reason is thrown. */
  signal?: AbortSignal;
}

export interface UploadOptions extends CallOptions {
  /** Write nothing if any document is bad or has an unknown field. */
  strict?: boolean;
}

export interface BatchOptions extends CallOptions {
  /** How many selections are made at a time, at most; 8 by default. */
  concurrency?: number;
}

const NDJSON = "application/x-ndjson";

/** A BoundaryMORPH service.
 *
 * Every call throws a ProblemError for what the service refuses, and ConnectionFailed, TimedOut or UnexpectedAnswer. */
export class Client {
  readonly #connection: Connection;

  constructor(options: ClientOptions = {}) {
    const key = options.apiKey?.trim() ?? "";
    if (!/^[!-~]*$/.test(key)) {
      throw new InvalidArgument("apiKey has characters that a header cannot carry; copy it again, without quotes or spaces");
    }
    this.#connection = {
      url: address(options.baseUrl ?? "http://127.0.0.1:8080"),
      headers: key === "" ? {} : { authorization: `Bearer ${key}` },
      timeout: options.timeout ?? 60_000,
      retries: options.retries ?? 3,
      fetch: options.fetch ?? ((input, init) => globalThis.fetch(input, init)),
    };
  }

  /** The best documents of an `index` or a `pool`. */
  async select(query: Query, options: SelectOptions, { signal }: CallOptions = {}): Promise<SelectResponse> {
    return parsed((await this.#send(selected(query, options, signal))).text) as SelectResponse;
  }

  /** The best `k` of all documents, by scores in [0, 1] that you have of the first of them: no call of a cross-encoder is
   * made. Embeddings make it better. The `source` of a document in the answer says whether its relevance is a score of
   * yours or inferred from them. */
  async extend(
    query: string,
    documents: readonly (string | Candidate)[],
    scores: ArrayLike<number>,
    options: Omit<SelectOptions, "index" | "pool" | "budget"> = {},
    call: CallOptions = {},
  ): Promise<SelectResponse> {
    return this.select(query, { ...options, pool: scored(documents, scores), budget: 0 } as SelectOptions, call);
  }

  /** As `select`, but a round before each round, and the selection, which has `documents`, last. Leaving the loop ends the
   * service's work. */
  async *stream(
    query: Query,
    options: SelectOptions,
    { signal }: CallOptions = {},
  ): AsyncGenerator<RoundEvent | SelectResponse, void, undefined> {
    const call = selected(query, options, signal);
    const headers = { ...call.headers, accept: "text/event-stream" };
    yield* events((await this.#send({ ...call, headers, streamed: true })).response, signal);
  }

  /** Make many selections, and yield their results in the order of the requests, which are read as they are needed. The
   * result of a selection that fails is its error, and the others go on. Every selection has the time and the retries of
   * a call of its own. Leaving the loop ends the service's work. */
  async *selectBatch(
    requests: Iterable<BatchRequest> | AsyncIterable<BatchRequest>,
    { concurrency = 8, signal }: BatchOptions = {},
  ): AsyncGenerator<SelectResponse | BoundaryMorphError, void, undefined> {
    if (!(concurrency >= 1)) throw new InvalidArgument(`concurrency is ${concurrency}; give 1 or more`);
    const leaving = new AbortController();
    const either = signal === undefined ? leaving.signal : AbortSignal.any([signal, leaving.signal]);
    const inFlight: Promise<SelectResponse | BoundaryMorphError>[] = [];
    try {
      for await (const { query, ...options } of requests) {
        const result = this.select(query, options as SelectOptions, { signal: either }).catch(asResult);
        result.catch(() => undefined); // the reason of an abort is thrown where the result is awaited
        inFlight.push(result);
        if (inFlight.length >= concurrency) yield await inFlight.shift()!;
      }
      while (inFlight.length > 0) yield await inFlight.shift()!;
    } finally {
      leaving.abort();
    }
  }

  /** Those that the key is for. */
  async listIndexes(options: CallOptions = {}): Promise<IndexDescription[]> {
    return (await this.#json<IndexList>({ method: "GET", path: "/indexes", ...options })).indexes;
  }

  /** Create it if it is not there. With a `dimension` it is for your own vectors, else the service's encoder makes them.
   * Throws IndexConflict if it is there and different. */
  async createIndex(name: string, index: CreateIndex = {}, options: CallOptions = {}): Promise<IndexDescription> {
    return this.#json({ method: "PUT", path: path(name), ...json(index), ...options });
  }

  /** Throws UnknownIndex. */
  async describeIndex(name: string, options: CallOptions = {}): Promise<IndexDescription> {
    return this.#json({ method: "GET", path: path(name), ...options });
  }

  /** Say what its documents are, for people and language models who choose among indexes; empty for no description.
   * Throws UnknownIndex. */
  async setDescription(name: string, description: string, options: CallOptions = {}): Promise<void> {
    await this.#send({ method: "PUT", path: path(name, "description"), ...json({ description }), ...options });
  }

  /** With all its documents. Throws UnknownIndex. */
  async deleteIndex(name: string, options: CallOptions = {}): Promise<void> {
    await this.#send({ method: "DELETE", path: path(name), idempotent: false, ...options });
  }

  /** Add or replace documents, in one request. Those that are no array are read as they are sent, and so only once. There
   * is no limit to its time but that of the `signal`. */
  async upload(
    index: string,
    documents: Iterable<Uploaded> | AsyncIterable<Uploaded>,
    { strict = false, signal }: UploadOptions = {},
  ): Promise<UploadReport> {
    const repeatable = Array.isArray(documents);
    let failure: { error: unknown } | undefined;
    const body = () =>
      repeatable ? documents.map(line).join("") : lines(documents, (error) => (failure = { error }));
    const call: Call = {
      method: "POST",
      path: `${path(index, "documents")}${strict ? "?strict=true" : ""}`,
      headers: { "content-type": NDJSON },
      body,
      repeatable,
      time: Infinity,
      signal,
    };
    try {
      return await this.#json<UploadReport>(call);
    } catch (error) {
      throw failure === undefined ? error : failure.error;
    }
  }

  /** Those whose ids come after this one, in the order of their ids. Throws UnknownIndex. */
  async listDocuments(index: string, after = "", limit = 100, options: CallOptions = {}): Promise<DocumentPage> {
    const query = new URLSearchParams({ limit: String(limit), ...(after ? { after } : {}) });
    return this.#json({ method: "GET", path: `${path(index, "documents")}?${query}`, ...options });
  }

  /** Its description, with what a sample of its documents looks like. Throws UnknownIndex. */
  async indexStatistics(name: string, options: CallOptions = {}): Promise<IndexStatistics> {
    return this.#json({ method: "GET", path: path(name, "stats"), ...options });
  }

  /** Throws UnknownIndex or UnknownDocument. */
  async getDocument(index: string, id: string, options: CallOptions = {}): Promise<StoredDocument> {
    return this.#json({ method: "GET", path: path(index, "documents", id), ...options });
  }

  /** Throws UnknownIndex or UnknownDocument. */
  async deleteDocument(index: string, id: string, options: CallOptions = {}): Promise<void> {
    await this.#send({ method: "DELETE", path: path(index, "documents", id), idempotent: false, ...options });
  }

  /** Those that are there. Throws UnknownIndex. */
  async deleteDocuments(index: string, ids: readonly string[], options: CallOptions = {}): Promise<DeleteReport> {
    const call = { method: "DELETE", path: path(index, "documents"), idempotent: false };
    return this.#json({ ...call, ...json({ ids }), ...options });
  }

  /** Whether the service can serve: its `status` is then `ok`. */
  async ready(options: CallOptions = {}): Promise<Ready> {
    const { response, text } = await this.#send({ method: "GET", path: "/readyz", accepted: 503, ...options });
    if (!response.ok && response.headers.get("content-type") !== "application/json") throw ofResponse(response, text);
    return parsed(text) as Ready;
  }

  async #json<Result extends object>(call: Call): Promise<Result> {
    return parsed((await this.#send(call)).text) as Result;
  }

  #send(call: Call): Promise<Answer> {
    return answered(this.#connection, call);
  }
}

/** Return an error of a selection as its result. Throws every other one. */
function asResult(error: unknown): BoundaryMorphError {
  if (error instanceof BoundaryMorphError) return error;
  throw error;
}

function selected(query: Query, options: SelectOptions, signal: AbortSignal | undefined): Call {
  const { deadline_ms, ...body } = selection(query, options);
  return {
    method: "POST",
    path: "/select",
    headers: { "content-type": "application/json" },
    // The service gets the remaining time.
    body: (left) => encoded({ ...body, deadline_ms: Math.max(1, Math.round(left)) }),
    time: typeof deadline_ms === "number" ? deadline_ms : undefined,
    signal,
  };
}

function json(body: object): Pick<Call, "headers" | "body"> {
  return { headers: { "content-type": "application/json" }, body: () => encoded(body) };
}

/** Throws a RangeError for an id that no URL can carry: a path of dots leads to another route, escaped or not. */
function path(index: string, ...parts: string[]): string {
  const names = [index, ...parts];
  const dots = names.find((name) => name === "." || name === "..");
  if (dots !== undefined) throw new RangeError(`${JSON.stringify(dots)} cannot be in a URL; deleteDocuments takes it`);
  return ["/indexes", ...names.map((name) => encodeURIComponent(formed(name)))].join("/");
}

/** A URL without slashes at its end. Throws InvalidArgument for one that cannot be used, without a password in it. */
function address(given: string): string {
  const url = given.trim();
  if (!/^https?:\/\/[^\s?#]+$/.test(url) || !URL.canParse(url)) {
    const shown = url.includes("@") ? "baseUrl" : `baseUrl ${JSON.stringify(url)}`;
    throw new InvalidArgument(`${shown} cannot be used; give it as http://HOST:PORT or https://HOST`);
  }
  if (new URL(url).username || new URL(url).password) {
    throw new InvalidArgument("baseUrl contains a user or a password; give the key as apiKey");
  }
  return url.replace(/\/+$/, "");
}
