// Titles and texts of documents: those of a pool are on the page, those of an index come with the answer or are fetched.

import { shortened } from "./dom.js";

export class Texts {
  #known = new Map();
  #read;

  // read(id): the document of an index; null if the pool was pasted.
  constructor(documents, read) {
    this.#read = read;
    this.add(documents);
  }

  add(documents) {
    for (const document of documents) this.#known.set(document.id, document);
  }

  title(id) {
    const document = this.#known.get(id);
    return shortened(document?.title?.trim() || document?.text?.trim() || id);
  }

  // Throws the service's error.
  async text(id) {
    if (!this.#known.has(id) && this.#read) this.#known.set(id, await this.#read(id));
    return this.#known.get(id)?.text ?? "";
  }
}
