/** What a call throws. A class for each type of problem that a caller may want to tell from others; every other type is a
 * plain `ProblemError`, or the nearest class above it. */

import type { Problem } from "./schema.ts";

export const TYPE = "urn:boundarymorph:problem:";
const MAX_CHARACTERS = 200; // of an error that is no problem document, from a proxy perhaps

/** Base of everything that a call throws because of the service or the way to it. */
export class BoundaryMorphError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** What was given cannot be sent: a value that JSON does not have. */
export class InvalidArgument extends BoundaryMorphError {}

/** The service cannot be reached, or the connection broke. `cause` is what fetch threw. */
export class ConnectionFailed extends BoundaryMorphError {}

/** The time of the call was over before the service had answered. */
export class TimedOut extends BoundaryMorphError {}

/** What answered is no BoundaryMORPH. */
export class UnexpectedAnswer extends BoundaryMorphError {}

/** The service refused the request, or failed. */
export class ProblemError extends BoundaryMorphError {
  /** Stable, such as `urn:boundarymorph:problem:unknown-index`. */
  readonly type: string;
  /** Of the HTTP answer. */
  readonly status: number;
  /** The problem, and what to do about it. */
  readonly detail: string;
  /** Where in the body, and what. */
  readonly errors: readonly Record<string, string>[];
  /** By which the service's log knows the request. */
  readonly requestId: string | null;
  /** Seconds, where the service says when to try again. */
  readonly retryAfter: number | null;

  constructor(problem: Problem, headers: Headers) {
    super(`${problem.detail} (${problem.status} ${problem.type.replace(TYPE, "")})`);
    this.type = problem.type;
    this.status = problem.status;
    this.detail = problem.detail;
    this.errors = problem.errors ?? [];
    this.requestId = headers.get("x-request-id");
    this.retryAfter = seconds(headers.get("retry-after"));
  }
}

/** The request cannot be used as it stands: a field, a size, embeddings, ids or a name. */
export class InvalidInput extends ProblemError {}
export class NotFound extends ProblemError {}
export class UnknownPolicy extends NotFound {}
export class UnknownIndex extends NotFound {}
export class UnknownDocument extends NotFound {}
export class Conflict extends ProblemError {}
/** The index exists with another encoder, dimension or kind. */
export class IndexConflict extends Conflict {}
/** The index holds no documents yet. */
export class EmptyIndex extends Conflict {}
/** There is no key, or none that the service knows. */
export class Unauthenticated extends ProblemError {}
/** The key is not for this. */
export class Forbidden extends ProblemError {}
/** Not now; `retryAfter` says when. */
export class TooManyRequests extends ProblemError {}
/** The service has more work in hand than may wait. */
export class Overloaded extends TooManyRequests {}
/** The key has made as many requests as it may for now. */
export class RateLimited extends TooManyRequests {}
/** The service, or a part that the request needs, does not work now. */
export class Unavailable extends ProblemError {}
/** The service is starting or stopping. */
export class NotReady extends Unavailable {}
export class ScorerUnavailable extends Unavailable {}
export class RetrieverUnavailable extends Unavailable {}
export class EncoderUnavailable extends Unavailable {}
export class StorageUnavailable extends Unavailable {}
/** A scorer, retriever or encoder behind the service gives what makes no sense: for its operator. */
export class UpstreamFailed extends ProblemError {}
/** The deadline came before the service had anything to answer. */
export class DeadlineExceeded extends ProblemError {}

/** The class of each type of problem, without its prefix. */
export const KINDS: Readonly<Record<string, typeof ProblemError>> = {
  "invalid-input": InvalidInput,
  "limit-exceeded": InvalidInput,
  "invalid-embeddings": InvalidInput,
  "duplicate-ids": InvalidInput,
  "invalid-index-name": InvalidInput,
  "text-too-long": InvalidInput,
  "body-too-large": InvalidInput,
  "unsupported-media-type": InvalidInput,
  "not-found": NotFound,
  "unknown-policy": UnknownPolicy,
  "unknown-index": UnknownIndex,
  "unknown-document": UnknownDocument,
  "index-conflict": IndexConflict,
  "empty-index": EmptyIndex,
  "unauthenticated": Unauthenticated,
  "forbidden": Forbidden,
  "overloaded": Overloaded,
  "rate-limited": RateLimited,
  "not-ready": NotReady,
  "model-unavailable": Unavailable,
  "storage-unavailable": StorageUnavailable,
  "storage-full": StorageUnavailable,
  "scorer-unavailable": ScorerUnavailable,
  "retriever-unavailable": RetrieverUnavailable,
  "encoder-unavailable": EncoderUnavailable,
  "scorer-failed": UpstreamFailed,
  "retriever-failed": UpstreamFailed,
  "encoder-failed": UpstreamFailed,
  "malformed-frame": UpstreamFailed,
  "deadline-exceeded": DeadlineExceeded,
};
const BY_STATUS: Readonly<Record<number, typeof ProblemError>> = { 429: TooManyRequests, 503: Unavailable }; // of a proxy

/** The error of a problem that came with this answer, or in the middle of it. */
export function ofProblem(problem: Problem, headers: Headers): ProblemError {
  const kind = KINDS[problem.type.replace(TYPE, "")] ?? BY_STATUS[problem.status] ?? ProblemError;
  return new kind(problem, headers);
}

/** The error that an unsuccessful answer stands for. */
export function ofResponse(response: Response, text: string): ProblemError {
  let problem: Partial<Problem> | undefined;
  try {
    problem = JSON.parse(text);
  } catch {
    // Of something else than the service.
  }
  if (typeof problem?.type === "string" && typeof problem.status === "number" && typeof problem.detail === "string") {
    return ofProblem(problem as Problem, response.headers);
  }
  const title = response.statusText;
  const detail = text.slice(0, MAX_CHARACTERS).trim() || title || "no detail";
  return ofProblem({ type: "about:blank", title, status: response.status, detail }, response.headers);
}

/** A Retry-After: a number of seconds or a date; null where it is missing or neither. */
function seconds(header: string | null): number | null {
  if (header === null || header.trim() === "") return null;
  const number = Number(header);
  if (Number.isFinite(number)) return Math.max(0, number);
  const date = Date.parse(header);
  return Number.isNaN(date) ? null : Math.max(0, (date - Date.now()) / 1000);
}
