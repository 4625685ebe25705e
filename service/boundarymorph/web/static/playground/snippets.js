// The request as code, never with a key.

import { find, offerTabs } from "./dom.js";

const LANGUAGES = { curl, Python: python, TypeScript: typescript };

export class Snippets {
  #language = "curl";
  #shown = null;

  constructor() {
    offerTabs(document.querySelector("#request .tabs"), find("code"), Object.keys(LANGUAGES), (language) => this.#choose(language));
    find("copy").addEventListener("click", () => this.#copy());
  }

  show(request, withKey) {
    this.#shown = { request, withKey, url: new URL(".", document.baseURI).href.replace(/\/$/, "") };
    this.#choose(this.#language);
  }

  #choose(language) {
    this.#language = language;
    if (this.#shown) find("code").firstElementChild.textContent = LANGUAGES[language](this.#shown);
  }

  async #copy() {
    const code = find("code").firstElementChild;
    try {
      await navigator.clipboard.writeText(code.textContent);
      find("copy").textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // without access to the clipboard, let the reader copy
      find("copy").textContent = "Selected";
    }
    setTimeout(() => (find("copy").textContent = "Copy"), 1500);
  }
}

function curl({ request, withKey, url }) {
  const body = JSON.stringify(request, null, 2).replaceAll("'", `'"'"'`);
  const key = withKey ? ` \\\n  -H "Authorization: Bearer $BOUNDARYMORPH_API_KEY"` : "";
  return `curl -s ${url}/select${key} \\\n  -d '${body}'`;
}

function python({ request, withKey, url }) {
  const { query, queries, ...options } = request;
  const lines = Object.entries(options).map(([name, value]) => `        ${name}=${pythonValue(value)},`);
  const imports = withKey ? "import os\n\n" : "";
  const key = withKey ? `, api_key=os.environ["BOUNDARYMORPH_API_KEY"]` : "";
  return `${imports}from boundarymorph_client import Client

with Client(${pythonValue(url)}${key}) as client:
    selection = client.select(
        ${pythonValue(query ?? queries)},
${lines.join("\n")}
    )
for document in selection.documents:
    print(document.rank, document.id, document.relevance, document.source)`;
}

function pythonValue(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, entry]) => `${pythonValue(name)}: ${pythonValue(entry)}`).join(", ")}}`;
  return JSON.stringify(value);
}

function typescript({ request, withKey, url }) {
  const { query, queries, ...options } = request;
  const key = withKey ? ", apiKey: process.env.BOUNDARYMORPH_API_KEY" : "";
  return `import { Client } from "boundarymorph-client";

const client = new Client({ baseUrl: ${JSON.stringify(url)}${key} });
const selection = await client.select(${JSON.stringify(query ?? queries)}, ${JSON.stringify(options, null, 2)});
for (const { rank, id, relevance, source } of selection.documents) console.log(rank, id, relevance, source);`;
}
