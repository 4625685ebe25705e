/** A way to the service on which requests come to grief, one after another. */

import { createServer, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export type Fate = "reset" | "hang" | ((response: ServerResponse) => void);

export interface Way extends AsyncDisposable {
  readonly url: string;
  /** Of each request that came, whatever became of it: its method, its path and its body, which has come at the time. */
  readonly seen: { method: string; path: string; authorization: string | undefined; body: string }[];
}

/** fates: what becomes of the next requests; later ones reach the service. */
export async function wayTo(service: string, fates: Fate[] = []): Promise<Way> {
  const seen: Way["seen"] = [];
  const server = createServer((incoming, response) => {
    const { method = "", url: path = "", headers } = incoming;
    const one = { method, path, authorization: headers.authorization, body: "" };
    seen.push(one);
    incoming.on("data", (piece: Buffer) => (one.body += piece.toString("latin1")));
    const fate = fates.shift();
    if (fate === undefined) {
      const outgoing = request(`${service}${path}`, { method, headers }, (answer) => {
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        answer.pipe(response);
      });
      response.on("close", () => outgoing.destroy());
      outgoing.on("error", () => response.destroy());
      incoming.pipe(outgoing);
    } else if (fate === "reset") incoming.on("end", () => response.destroy()).resume();
    else if (fate !== "hang") incoming.on("end", () => fate(response)).resume();
    else incoming.resume();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    seen,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/** An answer that something else than the service gives. */
export function answer(status: number, headers: Record<string, string>, body = ""): Fate {
  return (response) => response.writeHead(status, headers).end(body);
}
