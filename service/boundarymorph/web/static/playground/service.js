// The service that serves this page. The key is kept only here, in memory.

const LONGEST_WAIT = 60; // seconds that the service may ask to wait for

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

  // The problem, as a sentence without the advice to try again.
  get reason() {
    const [what] = this.message.split(";", 1);
    return what.charAt(0).toUpperCase() + what.slice(1);
  }
}

export class Service {
  key = "";
  onWait = () => {}; // called with the reason when the service asks to wait

  read(path) {
    return this.#patiently(path, {});
  }

  select(request, signal) {
    const headers = { "Content-Type": "application/json" };
    return this.#patiently("select", { method: "POST", headers, body: JSON.stringify(request), signal });
  }

  // Tries again when the service says when to, as it does while its models are warming up.
  async #patiently(path, options) {
    for (;;) {
      try {
        return await this.#send(path, options);
      } catch (error) {
        if (error.status !== 503 || !(error.retryAfter <= LONGEST_WAIT)) throw error;
        this.onWait(error.reason);
        await new Promise((resolve) => setTimeout(resolve, 1000 * Math.max(1, error.retryAfter)));
        options.signal?.throwIfAborted();
      }
    }
  }

  async #send(path, options) {
    if (!/^[\x21-\x7e]*$/.test(this.key)) {
      throw new Problem({ title: "This is not a key", detail: "An API key has no spaces and only ASCII characters. Paste it again.", status: 401 });
    }
    const headers = { ...options.headers, ...(this.key ? { Authorization: `Bearer ${this.key}` } : {}) };
    let response, content;
    try {
      response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
      const readable = response.headers.get("Content-Type")?.includes("json");
      content = readable ? await response.json() : { title: `Status ${response.status}`, detail: response.statusText, status: response.status };
    } catch (error) {
      if (error.name === "AbortError") throw error;
      const broken = response ? "The connection broke during the answer." : "The service cannot be reached.";
      throw new Problem({ title: "No answer", detail: `${broken} Is it still running?` });
    }
    if (response.ok) return content;
    throw new Problem(content, response);
  }
}
