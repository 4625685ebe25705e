/** How a call is tried: within its time, and again after a pause where that makes sense. */

import { BoundaryMorphError, ConnectionFailed, ofResponse, ProblemError, TimedOut } from "./errors.ts";

const AGAIN = [429, 503]; // statuses of requests that were not begun
const GRACE = 500; // milliseconds that an answer may take beyond its deadline, which the service keeps, to arrive
const FIRST_PAUSE = 250; // milliseconds at most, before jitter
const LONGEST_PAUSE = 8_000;

/** Where the service is, and how patient its client. */
export interface Connection {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Milliseconds for a call with all its attempts. */
  readonly timeout: number;
  /** Attempts after the first, at most. */
  readonly retries: number;
  readonly fetch: typeof globalThis.fetch;
}

/** One call. */
export interface Call {
  readonly method: string;
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Returns the body of an attempt. left: the remaining milliseconds. */
  readonly body?: (left: number) => string | ReadableStream<Uint8Array>;
  /** Whether the answer is read by the caller, as it comes. */
  readonly streamed?: boolean;
  /** Milliseconds for the whole of it, by default the client's timeout; Infinity for no limit. */
  readonly time?: number | undefined;
  /** Whether it may be sent again when it is not known whether it was received; by default it may. */
  readonly idempotent?: boolean;
  /** Whether it may be sent again at all; by default it may. */
  readonly repeatable?: boolean;
  /** A further status, beside success, whose answer is returned. */
  readonly accepted?: number;
  readonly signal?: AbortSignal | undefined;
}

export interface Answer {
  readonly response: Response;
  /** Of an answer that is not streamed. */
  readonly text: string;
}

/** Send a call until it is answered, its time is over or there is no point in going on. */
export async function answered(connection: Connection, call: Call): Promise<Answer> {
  const end = performance.now() + (call.time ?? connection.timeout);
  for (let retries = 0; ; retries++) {
    const result = await attempted(connection, call, end - performance.now());
    if (!(result instanceof BoundaryMorphError)) return result;
    const least = result instanceof ProblemError ? 1000 * (result.retryAfter ?? 0) : 0;
    const pause = least + Math.random() * Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** retries);
    const repeatable = call.repeatable ?? true;
    if (!repeatable || retries >= connection.retries || pause >= end - performance.now()) throw result;
    await slept(pause, call.signal);
  }
}

/** One attempt: its answer, or an error after which another one makes sense. Throws the others. */
async function attempted(connection: Connection, call: Call, left: number): Promise<Answer | BoundaryMorphError> {
  const body = call.body?.(left);
  const init: RequestInit & { duplex?: "half" } = {
    method: call.method,
    headers: { accept: "application/json", ...connection.headers, ...call.headers },
    signal: limited(left, call.signal),
  };
  if (body !== undefined) init.body = body;
  if (typeof body === "object") init.duplex = "half";
  let response: Response;
  let text: string;
  try {
    response = await connection.fetch(connection.url + call.path, init);
    if (response.ok && call.streamed) return { response, text: "" };
    text = await response.text();
  } catch (error) {
    const failure = ofFetch(error, call.signal, connection.url);
    if (failure instanceof ConnectionFailed && (call.idempotent ?? true)) return failure;
    throw failure;
  }
  if (response.ok || response.status === call.accepted) return { response, text };
  const problem = ofResponse(response, text);
  if (AGAIN.includes(response.status)) return problem;
  throw problem;
}

/** The error that what fetch threw stands for: its caller's reason where that gave up. */
export function ofFetch(error: unknown, signal: AbortSignal | undefined, url?: string): unknown {
  if (signal?.aborted) return signal.reason;
  if (error instanceof BoundaryMorphError) return error;
  const name = error instanceof Error ? error.name : "";
  if (name === "TimeoutError") return new TimedOut("the time of the call is over", { cause: error });
  const causes = [error, error instanceof Error ? error.cause : undefined];
  const said = causes.flatMap((cause) => (cause instanceof Error ? [cause.message] : []));
  const place = url === undefined ? "" : `${url} cannot be reached; is \`boundarymorph serve\` running there? `;
  return new ConnectionFailed(place + said.join(": "), { cause: error });
}

function limited(left: number, signal: AbortSignal | undefined): AbortSignal {
  const signals = signal === undefined ? [] : [signal];
  if (Number.isFinite(left)) signals.push(AbortSignal.timeout(Math.ceil(Math.max(0, left) + GRACE)));
  return AbortSignal.any(signals);
}

function slept(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}
