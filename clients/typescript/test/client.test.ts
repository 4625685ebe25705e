/** Against a running service at BOUNDARYMORPH_URL that has an index "texts", of the documents d0 to d39, and no keys. */

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { suite, test } from "node:test";

import * as bm from "../src/index.ts";
import { answer, wayTo } from "./way.ts";

const url = process.env["BOUNDARYMORPH_URL"];
assert(url, "set BOUNDARYMORPH_URL to that of a service");
const QUERY = "what is asked";
const client = new bm.Client({ baseUrl: url });

/** But for the id and the times. */
function same(one: bm.Selection, other: bm.Selection): void {
  const kept = { id: "", timings_ms: {} };
  assert.deepEqual({ ...one, ...kept }, { ...other, ...kept });
}

async function collected<Item>(items: AsyncIterable<Item>): Promise<Item[]> {
  const all: Item[] = [];
  for await (const item of items) all.push(item);
  return all;
}

suite("select", () => {
  test("is what the service answers", async () => {
    const pool = Array.from({ length: 30 }, (_, n) => ({ id: `d${n}`, text: `text ${n}` }));
    const options: bm.SelectOptions = {
      pool, budget: 7, k: 5, rounds: 4, method: "boundarymorph", reuse: false, return_documents: true,
      explain: true, on_failure: "error",
    };
    const selection = await client.select(QUERY, options);
    const body = JSON.stringify({ query: QUERY, ...options });
    const headers = { "content-type": "application/json" };
    const response = await fetch(`${url}/select`, { method: "POST", headers, body });
    same(selection, (await response.json()) as bm.Selection);
    assert.equal(selection.documents.length, 5);
    assert.equal(selection.usage.cross_encoder_calls, 7);
    assert.equal(selection.rounds?.length, 4);
  });

  test("boosts", async () => {
    const pool = Array.from({ length: 20 }, (_, n) => ({ text: `text ${n}`, metadata: { clicks: n }, weight: n < 5 ? 0.5 : 1 }));
    const boost = [{ field_value_factor: { field: "clicks", modifier: "ln2p" as const } }];
    const { documents } = await client.select(QUERY, { pool, budget: 20, k: 20, boost });
    for (const { id, relevance, value } of documents) {
      const expected = relevance * Math.log(Number(id) + 2) * (Number(id) < 5 ? 0.5 : 1);
      assert(Math.abs((value ?? NaN) - expected) < 1e-9);
    }
    const values = documents.map(({ value }) => value ?? NaN);
    assert.deepEqual(values, values.toSorted((one, other) => other - one));
  });

  test("from an index", async () => {
    const options = { index: "texts", depth: 20, budget: 0, k: 3, filter: {}, hybrid: true };
    const selection = await client.select(QUERY, options);
    assert.deepEqual([selection.pool_size, selection.status], [20, "complete"]);
  });

  test("a pool of texts", async () => {
    const pool = ["one", "two", "three"];
    const selection = await client.select(QUERY, { pool, budget: 2, k: 2, return_documents: true });
    for (const document of selection.documents) assert.equal(document.text, pool[Number(document.id)]);
  });

  test("scores speak for documents that nobody read", async () => {
    const texts = Array.from({ length: 20 }, (_, n) => `text ${n}`);
    const found = await client.extend(QUERY, texts, [0.9, 0.1, 0.8], { k: 5, reuse: false });
    assert.equal(found.usage.cross_encoder_calls, 0);
    const own = found.documents.filter(({ source }) => source === "cross_encoder");
    assert.deepEqual(own.slice(0, 2).map(({ id, relevance }) => [id, relevance]), [["0", 0.9], ["2", 0.8]]);
    assert(found.documents.length === 5 && own.length < 5);
    await assert.rejects(client.extend(QUERY, ["a"], [0.9, 0.1]), RangeError);
  });

  test("typed arrays are what lists are", async () => {
    const vectors = Array.from({ length: 20 }, (_, row) =>
      Float32Array.from({ length: 8 }, (_, column) => Math.sin(1 + row * 8 + column)),
    );
    const pool = vectors.map((_, n) => `text ${n}`);
    const common = { budget: 6, k: 4, reuse: false };
    await using way = await wayTo(url);
    const passing = new bm.Client({ baseUrl: way.url });
    const block = await passing.select(QUERY, { ...common, pool, embeddings: vectors, query_embedding: vectors[0]! });
    const sent = JSON.parse(way.seen[0]!.body).pool.embeddings;
    assert.deepEqual([sent.shape, sent.dtype], [[20, 8], "float32"]);
    const inside = await passing.select(QUERY, {
      ...common,
      pool: pool.map((text, n) => ({ text, embedding: vectors[n]! })),
      query_embedding: Array.from(vectors[0]!),
    });
    assert.deepEqual(block.documents.map(({ id }) => id), inside.documents.map(({ id }) => id));
    for (const [n, document] of block.documents.entries()) {
      assert(Math.abs(document.relevance - inside.documents[n]!.relevance) < 1e-3);
    }
  });

  test("signals of the pool", async () => {
    await using way = await wayTo(url);
    const features = { clicks: [3, null], age: [0.5, 1] };
    await new bm.Client({ baseUrl: way.url }).select(QUERY, { pool: ["a", "b"], features, budget: 0, k: 1 });
    assert.deepEqual(JSON.parse(way.seen[0]!.body).pool.features, features);
  });

  test("a wrong number of embeddings is not sent", async () => {
    await using way = await wayTo(url);
    const call = new bm.Client({ baseUrl: way.url }).select(QUERY, { pool: ["a", "b"], embeddings: [[1, 2]] });
    await assert.rejects(call, { name: "RangeError", message: "there are 1 embeddings for 2 documents" });
    assert.equal(way.seen.length, 0);
  });
});

suite("stream", () => {
  test("rounds, and the selection last", async () => {
    const options = { index: "texts", budget: 6, rounds: 3, k: 5, reuse: false };
    const steps = await collected(client.stream(QUERY, options));
    const last = steps.pop();
    assert(last !== undefined && "documents" in last);
    assert.deepEqual(steps.map((step) => "cross_encoder_calls" in step && step.cross_encoder_calls), [0, 2, 4]);
    same(last, await client.select(QUERY, options));
  });

  test("pieces that end anywhere", async () => {
    /** The bytes one by one. */
    const slowly: typeof fetch = async (input, init) => {
      const response = await fetch(input, init);
      const split = new TransformStream<Uint8Array, Uint8Array>({
        transform(piece, controller) {
          for (const byte of piece) controller.enqueue(Uint8Array.of(byte));
        },
      });
      return new Response(response.body!.pipeThrough(split), response);
    };
    const text = "ä\u2028b\r\n\n€";
    const options = { pool: [text, "e"], budget: 1, k: 2, return_documents: true, reuse: false };
    const steps = await collected(new bm.Client({ baseUrl: url, fetch: slowly }).stream(QUERY, options));
    const last = steps.at(-1);
    assert(last !== undefined && "documents" in last);
    assert.deepEqual(new Set(last.documents.map((document) => document.text)), new Set([text, "e"]));
  });

  test("what cannot begin", async () => {
    await assert.rejects(collected(client.stream(QUERY, { index: "none" })), bm.UnknownIndex);
  });

  test("one that breaks off", async () => {
    const round = 'event: round\r\ndata: {"rounds": 1,\r\ndata: "ids": ["a"]}\r\n\r\n';
    await using way = await wayTo(url, [answer(200, { "content-type": "text/event-stream" }, round)]);
    const stream = new bm.Client({ baseUrl: way.url }).stream(QUERY, { index: "texts" });
    assert.deepEqual((await stream.next()).value, { rounds: 1, ids: ["a"] });
    await assert.rejects(stream.next(), bm.ConnectionFailed);
  });

  test("a problem in the middle", async () => {
    const problem = { type: "urn:boundarymorph:problem:scorer-unavailable", title: "", status: 503, detail: "nobody" };
    const headers = { "content-type": "text/event-stream", "x-request-id": "r1" };
    const event = `event: problem\ndata: ${JSON.stringify(problem)}\n\n`;
    await using way = await wayTo(url, [answer(200, headers, event)]);
    const steps = collected(new bm.Client({ baseUrl: way.url }).stream(QUERY, { index: "texts" }));
    await assert.rejects(steps, (error) => error instanceof bm.ScorerUnavailable && error.requestId === "r1");
  });

  for (const how of ["leaving the loop", "a signal"]) {
    test(`${how} ends the work of the service`, async () => {
      const controller = new AbortController();
      const pool = Array.from({ length: 2_000 }, (_, n) => `text ${how} ${n}`);
      const options = { pool, budget: 1_500, rounds: 1_500, k: 3 };
      let rounds = 0;
      const reading = (async () => {
        for await (const step of client.stream(QUERY, options, { signal: controller.signal })) {
          if (!("ids" in step) || ++rounds < 3) continue;
          if (how === "a signal") controller.abort(new Error("enough"));
          else break;
        }
      })();
      if (how === "a signal") await assert.rejects(reading, /enough/);
      else await reading;
      assert.equal(rounds, 3);
      while (!(await metric("boundarymorph_select_running")).endsWith(" 0.0")) await sleep(10);
    });
  }
});

suite("batch", () => {
  const few = { pool: ["a", "b", "c"], budget: 1, k: 1, reuse: false };
  async function* numbered(count: number): AsyncGenerator<bm.BatchRequest> {
    for (let n = 0; n < count; n++) yield { query: `query ${n}`, ...few };
  }

  test("results come in order, and a failure is the result of its request", async () => {
    const requests = [...(await collected(numbered(20))), { query: "x", index: "none" }, { query: "q", ...few }];
    const found = await collected(client.selectBatch(requests));
    assert.equal(found.length, 22);
    assert(found[20] instanceof bm.UnknownIndex);
    for (const n of [0, 7, 19, 21]) {
      const { query, ...options } = requests[n]!;
      assert(!(found[n] instanceof bm.BoundaryMorphError));
      assert.deepEqual(found[n]!.documents, (await client.select(query, options as bm.SelectOptions)).documents);
    }
  });

  test("as many are made at a time as is wanted", async () => {
    let read = 0;
    let inFlight = 0;
    let most = 0;
    const counting: typeof fetch = async (...given) => {
      most = Math.max(most, ++inFlight);
      return fetch(...given).finally(() => (inFlight -= 1));
    };
    async function* counted(): AsyncGenerator<bm.BatchRequest> {
      for await (const request of numbered(30)) {
        read += 1;
        yield request;
      }
    }
    const batch = new bm.Client({ baseUrl: url!, fetch: counting }).selectBatch(counted(), { concurrency: 3 });
    await batch.next();
    assert.equal(read, 3);
    assert.equal((await collected(batch)).length, 29);
    assert.equal(most, 3);
  });

  test("what cannot be sent", async () => {
    async function* failing(): AsyncGenerator<bm.BatchRequest> {
      yield { query: "q", ...few };
      throw new Error("the source is broken");
    }
    await assert.rejects(collected(client.selectBatch(failing())), /the source is broken/);
    for (const concurrency of [0, NaN]) {
      await assert.rejects(collected(client.selectBatch([], { concurrency })), /give 1 or more/);
    }
  });

  for (const how of ["leaving the loop", "a signal"]) {
    test(`${how} ends the work of the service`, async () => {
      const controller = new AbortController();
      const pool = Array.from({ length: 2_000 }, (_, n) => `text ${how} ${n}`);
      const long = Array.from({ length: 5 }, () => ({ query: QUERY, pool, budget: 1_500, rounds: 1_500, k: 3 }));
      const options = { signal: controller.signal, concurrency: 3 };
      const batch = client.selectBatch([{ query: QUERY, ...few }, ...long], options);
      assert.equal(((await batch.next()).value as bm.Selection).documents.length, 1);
      while ((await metric("boundarymorph_select_running")).endsWith(" 0.0")) await sleep(10);
      if (how === "a signal") {
        controller.abort(new Error("enough"));
        await assert.rejects(batch.next(), /enough/);
      } else await batch.return();
      while (!(await metric("boundarymorph_select_running")).endsWith(" 0.0")) await sleep(10);
    });
  }
});

async function metric(name: string): Promise<string> {
  const text = await (await fetch(`${url}/metrics`)).text();
  return text.split("\n").find((line) => line.startsWith(name)) ?? "";
}

suite("indexes", () => {
  test("from creation to deletion", async () => {
    const name = "own-typescript";
    const made = await client.createIndex(name, { dimension: 4, kind: "flat", lexical: false });
    assert.deepEqual([made.name, made.dimension, made.encoder, made.count], [name, 4, null, 0]);
    assert((await client.listIndexes()).some((index) => index.name === name));
    await assert.rejects(client.createIndex(name, { dimension: 5 }), bm.IndexConflict);
    await assert.rejects(client.select(QUERY, { index: name, query_embedding: [1, 0, 0, 0] }), bm.EmptyIndex);
    const ids = ["..", "a/b", "ä ?#%41", "e"];
    const documents = ids.map((id, n) => ({
      id, text: `unit ${id}`, metadata: { n }, embedding: Float32Array.from([0, 1, 2, 3], (i) => Number(i === n)),
    }));
    assert.equal((await client.upload(name, documents)).added, 4);
    for (const [n, id] of ids.entries()) {
      if (id === "..") continue;
      const document = await client.getDocument(name, id);
      assert.deepEqual([document.id, document.text, document.metadata], [id, `unit ${id}`, { n }]);
    }
    // In a URL it would lead to the index itself.
    await assert.rejects(client.deleteDocument(name, ".."), RangeError);
    assert.equal((await client.describeIndex(name)).count, 4);
    await client.deleteDocument(name, "a/b");
    await assert.rejects(client.deleteDocument(name, "a/b"), bm.UnknownDocument);
    assert.equal((await client.deleteDocuments(name, ["..", "e", "never"])).deleted, 2);
    await client.deleteIndex(name);
    await assert.rejects(client.describeIndex(name), bm.UnknownIndex);
  });

  test("an upload from a generator, read as it is sent", async () => {
    await using way = await wayTo(url);
    const begun = new Set<number>();
    async function* documents() {
      for (let n = 0; n < 3_000; n++) {
        if (n % 100 === 0) await sleep(1);
        begun.add(way.seen.length);
        yield { id: `g${n}`, text: `${n} ${"x".repeat(1_000)}` };
      }
    }
    const name = "generated-typescript";
    await client.createIndex(name);
    const report = await new bm.Client({ baseUrl: way.url }).upload(name, documents());
    assert.deepEqual([report.added, report.skipped], [3_000, 0]);
    assert(begun.has(1), "all of it was read before it was sent");
    await client.deleteIndex(name);
  });

  test("bad documents", async () => {
    const name = "bad-typescript";
    await client.createIndex(name);
    const documents = [{ id: "a", text: "t", titel: "x" }, { id: "b" }] as unknown as bm.Uploaded[];
    const report = await client.upload(name, documents);
    assert.deepEqual([report.added, report.skipped, report.unknown_fields], [1, 1, { titel: 1 }]);
    assert.deepEqual(report.problems.map(({ line }) => line), [2]);
    await assert.rejects(client.upload(name, documents, { strict: true }), bm.InvalidInput);
    await client.deleteIndex(name);
  });

  test("documents that end in an error, which is thrown as it is", async () => {
    function* documents() {
      yield { id: "a", text: "t" };
      throw new SyntaxError("no more");
    }
    await assert.rejects(client.upload("texts", documents()), { name: "SyntaxError", message: "no more" });
    assert.equal((await client.ready()).status, "ok");
  });
});

suite("errors", () => {
  const cases: [string, object, typeof bm.ProblemError, string, number][] = [
    ["a bad value", { index: "texts", k: 0 }, bm.InvalidInput, "invalid-input", 422],
    ["too much", { index: "texts", k: 10 ** 6 }, bm.InvalidInput, "limit-exceeded", 422],
    ["no such index", { index: "none" }, bm.UnknownIndex, "unknown-index", 404],
    ["ids that are not unique", { pool: [{ id: "a", text: "t" }, { id: "a", text: "u" }] }, bm.InvalidInput, "duplicate-ids", 422],
    ["vectors of zeros", { pool: ["a"], embeddings: [[0, 0]] }, bm.InvalidInput, "invalid-embeddings", 422],
    ["a misspelt option", { index: "texts", bugdet: 3 }, bm.InvalidInput, "invalid-input", 422],
  ];
  for (const [what, options, kind, slug, status] of cases) {
    test(what, async () => {
      await assert.rejects(client.select(QUERY, options as bm.SelectOptions), (error) => {
        assert(error instanceof kind);
        assert.equal(error.name, kind.name);
        assert.deepEqual([error.type, error.status], [`urn:boundarymorph:problem:${slug}`, status]);
        assert(error.message.includes(error.detail) && error.requestId);
        if (what === "a misspelt option") assert.equal(error.errors[0]?.["field"], "bugdet");
        return true;
      });
    });
  }

  test("of something else", async () => {
    const html = { "content-type": "text/html" };
    await using way = await wayTo(url, [answer(200, html, "<h1>Hello</h1>"), answer(502, html, "<h1>Hello</h1>")]);
    const passing = new bm.Client({ baseUrl: way.url });
    await assert.rejects(passing.listIndexes(), bm.UnexpectedAnswer);
    await assert.rejects(passing.select(QUERY, { index: "texts" }), (error) => {
      assert(error instanceof bm.ProblemError);
      return error.type === "about:blank" && error.status === 502 && error.message.includes("Hello");
    });
  });

  test("no URL", () => {
    for (const baseUrl of ["localhost:8080", "ftp://host", "http://", "http://ho\nst", "http://host:port", "http://host/?a=1"]) {
      assert.throws(() => new bm.Client({ baseUrl }), (error) => {
        assert(error instanceof bm.InvalidArgument);
        return error.message.startsWith("baseUrl") && error.message.includes(JSON.stringify(baseUrl));
      });
    }
  });

  test("a password in a URL, which is not printed", () => {
    for (const baseUrl of ["http://user:hunter2@host", "user:hunter2@host", "http://user:hunter2@ho\nst"]) {
      assert.throws(() => new bm.Client({ baseUrl }), (error) => {
        return error instanceof bm.InvalidArgument && !error.message.includes("hunter2");
      });
    }
  });

  test("a key that no header can carry, which is not printed", () => {
    for (const apiKey of ["“hunter2”", "hunter2\nX-Other: 1", "hunter2 hunter2", "hunter2\0", "Bearer hunter2", "hunter2\u200b"]) {
      assert.throws(() => new bm.Client({ apiKey }), (error) => {
        return error instanceof bm.InvalidArgument && !error.message.includes("hunter2");
      });
    }
  });

  test("documents of a wrong kind", async () => {
    for (const pool of ["a text", { a: "a text" }, new Map([["a", "a text"]]), null, 7] as unknown as string[][]) {
      await assert.rejects(client.select(QUERY, { pool }), bm.InvalidArgument);
      await assert.rejects(client.extend(QUERY, pool, [0.5]), bm.InvalidArgument);
    }
    for (const documents of ["a text", { id: "a" }, new Map([["a", "a text"]]), 7] as unknown as bm.Uploaded[][]) {
      await assert.rejects(client.upload("texts", documents), bm.InvalidArgument);
    }
    for (const item of [null, 7, ["a"]] as unknown as string[]) {
      await assert.rejects(client.select(QUERY, { pool: ["a", item] }), /pool\[1\]/);
    }
  });
});

suite("keys", () => {
  test("without the white space around them", async () => {
    const keys: (string | null)[] = [];
    const kept: typeof fetch = (input, init) => {
      keys.push(new Headers(init?.headers).get("authorization"));
      return fetch(input, init);
    };
    for (const apiKey of ["k\n", " k\r\n", "k", "", " \n"]) {
      await new bm.Client({ baseUrl: `${url}\n`, apiKey, fetch: kept }).ready();
    }
    assert.deepEqual(keys, ["Bearer k", "Bearer k", "Bearer k", null, null]);
  });
});

suite("attempts", () => {
  const busy = answer(429, { "retry-after": "1" });

  test("after what is asked for, with what is left of the time", async () => {
    await using way = await wayTo(url, [busy, answer(503, { "retry-after": "0" })]);
    const began = performance.now();
    const passing = new bm.Client({ baseUrl: way.url, apiKey: "bm_key" });
    const selection = await passing.select(QUERY, { index: "texts", k: 2, deadline_ms: 30_000 });
    assert.equal(selection.documents.length, 2);
    assert(performance.now() - began >= 1_000);
    const left = way.seen.map(({ body }) => JSON.parse(body).deadline_ms);
    assert.equal(left.length, 3);
    assert(left[0] > 29_000 && left[0] <= 30_000 && left[1] <= left[0] - 1_000 && left[2] <= left[1]);
    assert.equal(way.seen[2]?.authorization, "Bearer bm_key");
  });

  test("none that the time does not suffice for", async () => {
    await using way = await wayTo(url, [busy, busy]);
    const passing = new bm.Client({ baseUrl: way.url });
    await assert.rejects(passing.select(QUERY, { index: "texts", deadline_ms: 900 }), (error) => {
      return error instanceof bm.TooManyRequests && error.retryAfter === 1;
    });
    assert.equal(way.seen.length, 1);
  });

  test("a date to come back at", async () => {
    const date = new Date(Date.now() + 3_600_000).toUTCString();
    await using way = await wayTo(url, [answer(503, { "retry-after": date })]);
    await assert.rejects(new bm.Client({ baseUrl: way.url }).listIndexes(), (error) => {
      return error instanceof bm.Unavailable && error.retryAfter! > 3_500;
    });
  });

  test("connections that break", async () => {
    await using way = await wayTo(url, ["reset"]);
    assert.equal((await new bm.Client({ baseUrl: way.url }).select(QUERY, { index: "texts", k: 1 })).k, 1);
    assert.equal(way.seen.length, 2);
  });

  test("connections that break again and again", async () => {
    await using way = await wayTo(url, ["reset", "reset", "reset", "reset"]);
    await assert.rejects(new bm.Client({ baseUrl: way.url, retries: 2 }).listIndexes(), bm.ConnectionFailed);
    assert.equal(way.seen.length, 3);
  });

  test("what may have been done is not repeated", async () => {
    await using way = await wayTo(url, ["reset", "reset"]);
    const passing = new bm.Client({ baseUrl: way.url });
    await assert.rejects(passing.deleteIndex("texts"), bm.ConnectionFailed);
    await assert.rejects(passing.upload("texts", [{ id: "a", text: "t" }].values()), bm.ConnectionFailed);
    assert.equal(way.seen.length, 2);
  });

  test("time that is over", async () => {
    await using way = await wayTo(url, ["hang", "hang", "hang"]);
    const passing = new bm.Client({ baseUrl: way.url, timeout: 50 });
    await assert.rejects(passing.select(QUERY, { index: "texts" }), bm.TimedOut);
    await assert.rejects(collected(passing.stream(QUERY, { index: "texts" })), bm.TimedOut);
    assert.equal(way.seen.length, 2);
  });

  test("a caller that gives up", async () => {
    await using way = await wayTo(url, ["hang", answer(429, { "retry-after": "5" })]);
    const passing = new bm.Client({ baseUrl: way.url });
    for (const requests of [1, 2]) {
      const controller = new AbortController();
      const call = passing.listIndexes({ signal: controller.signal });
      while (way.seen.length < requests) await sleep(5);
      await sleep(50);
      controller.abort(new Error("enough"));
      await assert.rejects(call, /enough/);
    }
    await assert.rejects(passing.listIndexes({ signal: AbortSignal.abort(new Error("never")) }), /never/);
    assert.equal(way.seen.length, 2);
  });
});

test("a service that is not ready", async () => {
  const json = { "content-type": "application/json" };
  await using way = await wayTo(url, [
    answer(503, json, '{"status": "starting", "parts": {}}'),
    answer(503, { "content-type": "text/plain" }, "no upstream"),
  ]);
  const passing = new bm.Client({ baseUrl: way.url, retries: 0 });
  assert.equal((await passing.ready()).status, "starting");
  await assert.rejects(passing.ready(), bm.Unavailable);
  assert.equal((await passing.ready()).status, "ok");
});

suite("values", () => {
  test("that are half of a surrogate pair are replaced", async () => {
    const id = "half\ud83d";
    const text = "a\ud83db \\ud83d \ud83d\ude00";
    assert.equal((await client.upload("texts", [{ id, text, metadata: { "k\udc00": "v" } }])).added, 1);
    const found = await client.getDocument("texts", id);
    assert.equal(found.id, "half\ufffd");
    assert.equal(found.text, "a\ufffdb \\ud83d \ud83d\ude00");
    assert.deepEqual(found.metadata, { "k\ufffd": "v" });
    await client.deleteDocument("texts", id);
  });

  test("that JSON does not have are named", async () => {
    for (const x of [NaN, Infinity, 1n, new Map(), new Set([1])]) {
      const bad = { id: "bad", text: "t", metadata: { x } };
      const said = /document "bad" cannot be uploaded: "x" is .*JSON/;
      await assert.rejects(client.upload("texts", [bad]), (error: Error) => {
        return error instanceof bm.InvalidArgument && said.test(error.message);
      });
      const documents = [{ id: "good", text: "t" }, bad];
      await assert.rejects(client.upload("texts", documents.values()), /"bad".*1 documents before it were sent/);
      await assert.rejects(client.select(QUERY, { pool: [bad] }), bm.InvalidArgument);
    }
    await client.deleteDocuments("texts", ["good"]);
  });

  test("of a service that is not there are its URL and a hint", async () => {
    const away = new bm.Client({ baseUrl: "http://127.0.0.1:9", retries: 0 });
    await assert.rejects(away.listIndexes(), /127\.0\.0\.1:9 .*`boundarymorph serve`/);
  });
});
