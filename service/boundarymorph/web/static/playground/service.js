// The service that serves this page. The key is kept only here, in memory.

export class Problem extends Error {
  constructor(content, response) {
    super(content.detail ?? content.title);
    this.title = content.title;
    this.type = (content.type ?? "").replace("urn:boundarymorph:problem:", "");
    this.status = content.status;
    this.errors = content.errors ?? [];
    this.retryAfter = parseInt(response?.headers.get("Retry-After")); // in seconds; NaN if the service does not say
    this.requestId = response?.headers.get("X-Request-ID") ?? null;
  }

  // What is wrong, as a sentence without the advice to try again.
  get reason() {
    const [what] = this.message.split(";", 1);
    return what.charAt(0).toUpperCase() + what.slice(1);
  }
}

export class Service {
  key = "";

  async read(path) {
    const response = await this.#send(path, {});
    return response.json();
  }

  // The events of a selection as {name, data}: "round" before each round, and finally "selection".
  async *select(request, signal) {
    const headers = { "Content-Type": "application/json", Accept: "text/event-stream" };
    const response = await this.#send("select", { method: "POST", headers, body: JSON.stringify(request), signal });
    for await (const event of eventsOf(response.body)) {
      if (event.name === "problem") throw new Problem(event.data, response);
      yield event;
    }
  }

  selection(request, signal) {
    return this.post("select", request, signal);
  }

  async post(path, content, signal) {
    const headers = { "Content-Type": "application/json" };
    const response = await this.#send(path, { method: "POST", headers, body: JSON.stringify(content), signal });
    return response.json();
  }

  async #send(path, options) {
    if (!/^[\x21-\x7e]*$/.test(this.key)) {
      throw new Problem({ title: "This is not a key", detail: "An API key has no spaces and only ASCII characters. Paste it again.", status: 401 });
    }
    const headers = { ...options.headers, ...(this.key ? { Authorization: `Bearer ${this.key}` } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem({ title: "No answer", detail: "The service cannot be reached. Is it still running?" });
    }
    if (response.ok) return response;
    let content = { title: `Status ${response.status}`, detail: response.statusText, status: response.status };
    if (response.headers.get("Content-Type")?.includes("json")) content = await response.json();
    throw new Problem(content, response);
  }
}

async function* eventsOf(body) {
  let rest = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read().catch(ended);
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [name, data] = part.split("\n", 2).map((line) => line.slice(line.indexOf(": ") + 2));
      yield { name, data: JSON.parse(data) };
    }
  }
}

// A broken connection ends the events before the last one; an aborted request is an error.
function ended(error) {
  if (error.name === "AbortError") throw error;
  return { done: true };
}
