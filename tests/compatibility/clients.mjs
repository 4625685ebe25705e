// Reranks what comes as JSON on stdin by a client of npm; index and score of each document, best first, go to stdout.
import { readFileSync } from "node:fs";
import { createCohere } from "@ai-sdk/cohere";
import { createVoyage } from "@ai-sdk/voyage";
import { rerank } from "ai";
import { VoyageAIClient } from "voyageai";

const { kind, url, key, documents, query, top } = JSON.parse(readFileSync(0, "utf8"));

async function ranked() {
  if (kind === "n8n") {
    const client = new VoyageAIClient({ apiKey: key, environment: `${url}/voyage/v1` });
    const asked = { query, documents, model: "rerank-2.5", topK: top, returnDocuments: false, truncation: true };
    const answer = await client.rerank(asked, { maxRetries: 0 });
    return answer.data.map((each) => [each.index, each.relevanceScore]);
  }
  const model =
    kind === "cohere"
      ? createCohere({ baseURL: `${url}/v2`, apiKey: key }).reranking("rerank-v3.5")
      : createVoyage({ baseURL: `${url}/voyage/v1`, apiKey: key }).reranking("rerank-2.5");
  const { ranking } = await rerank({ model, query, documents, topN: top, maxRetries: 0 });
  return ranking.map((each) => [each.originalIndex, each.score]);
}

try {
  console.log(JSON.stringify(await ranked()));
} catch (error) {
  console.error(error.message, JSON.stringify(error.body ?? error.responseBody ?? error.data));
  process.exitCode = 1;
}
