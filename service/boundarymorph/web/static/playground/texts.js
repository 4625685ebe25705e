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

  // Of a candidate, which may be a passage: the document's.
  owner(id) {
    return this.#known.has(id) ? id : id.replace(/#\d+$/, "");
  }

  title(id) {
    const document = this.#known.get(this.owner(id));
    const words = document?.title || document?.text?.trim().split("\n", 1)[0];
    const passage = document && document.id !== id ? `, passage ${Number(id.slice(document.id.length + 1)) + 1}` : "";
    return words && words !== id ? words + passage : id;
  }

  // Throws the service's error.
  async text(id) {
    if (!this.#known.has(id) && this.#read) this.#known.set(id, await this.#read(id));
    return this.#known.get(id)?.text ?? "";
  }
}
