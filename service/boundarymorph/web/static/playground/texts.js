// Titles and texts of documents: those of a pool are on the page, those of an index come with the answer or are fetched.

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
    return document?.title || document?.text?.trim().split("\n", 1)[0] || id;
  }

  // Throws the service's error.
  async text(id) {
    if (!this.#known.has(id) && this.#read) this.#known.set(id, await this.#read(id));
    return this.#known.get(id)?.text ?? "";
  }
}
