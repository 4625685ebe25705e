/* Retrieval-augmented generation in TypeScript.

npm install boundarymorph-client-0.1.0.tgz   (clients/typescript/README.md makes it)
node rag.ts "How do I read a gzipped file?" */

import process from "node:process";

import { Client } from "boundarymorph-client";

process.on("uncaughtException", (error) => {
  console.error(`error: ${error.message}`);
  process.exit(1);
});

const { BOUNDARYMORPH_API_KEY, BOUNDARYMORPH_URL, OPENAI_API_KEY, OPENAI_BASE_URL, OPENAI_MODEL } = process.env;
const question = process.argv.slice(2).join(" ") || "How do I read a gzipped file?";

const service = new Client({ baseUrl: BOUNDARYMORPH_URL ?? "http://127.0.0.1:8080", apiKey: BOUNDARYMORPH_API_KEY ?? "" });
const options = { index: "python-docstrings", budget: 20, k: 5, return_documents: true };
const selection = await service.select(question, options);
if ((selection.answerable ?? 1) < 0.5) {
  console.error("The answer is probably not in these documents.");
  process.exit(1);
}

const documents = selection.documents.map(({ id, text }) => `[${id}] ${text}`).join("\n\n");
const reply = await fetch(`${OPENAI_BASE_URL ?? "https://api.openai.com/v1"}/chat/completions`, {
  method: "POST",
  headers: { "content-type": "application/json", authorization: `Bearer ${OPENAI_API_KEY}` },
  body: JSON.stringify({
    model: OPENAI_MODEL ?? "gpt-4o-mini",
    messages: [
      { role: "system", content: `Answer from these documents, and name those that you used.\n\n${documents}` },
      { role: "user", content: question },
    ],
  }),
});
if (!reply.ok) throw new Error(await reply.text());

console.log((await reply.json()).choices[0].message.content);
for (const { id, relevance } of selection.documents) console.log(relevance.toFixed(3), id);
