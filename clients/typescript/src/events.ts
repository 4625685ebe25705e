/** The events of a streamed selection, which are read from their bytes as these come. */

import { ofFetch } from "./attempts.ts";
import { ConnectionFailed, ofProblem, UnexpectedAnswer } from "./errors.ts";
import type { Problem, RoundEvent, SelectResponse } from "./schema.ts";

/** Each round, and the selection last. Ending the iteration ends the work at the service. */
export async function* events(
  response: Response,
  signal: AbortSignal | undefined,
): AsyncGenerator<RoundEvent | SelectResponse, void, undefined> {
  let name = "";
  let data: string[] = [];
  for await (const line of lines(response, signal)) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5));
    else if (line === "" && data.length > 0) {
      const content = parsed(data.join("\n"));
      if (name === "problem") throw ofProblem(content as Problem, response.headers);
      if (name === "round") yield content as RoundEvent;
      if (name === "selection") {
        yield content as SelectResponse;
        return;
      }
      name = "";
      data = [];
    }
  }
  throw new ConnectionFailed("the stream ended before the selection");
}

async function* lines(response: Response, signal: AbortSignal | undefined): AsyncGenerator<string, void, undefined> {
  if (response.body === null) throw new UnexpectedAnswer("the answer has no body");
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let begun = ""; // the line that is not complete
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw ofFetch(error, signal);
      });
      if (done) return;
      const complete = (begun + decoder.decode(value, { stream: true })).split("\n");
      begun = complete.pop()!;
      for (const line of complete) {
        signal?.throwIfAborted();
        yield line.endsWith("\r") ? line.slice(0, -1) : line;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** A JSON object. Throws UnexpectedAnswer. */
export function parsed(text: string): object {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null) return value;
  } catch {
    // Something else than the service.
  }
  throw new UnexpectedAnswer(`the answer is no JSON object: ${text.slice(0, 200)}`);
}
