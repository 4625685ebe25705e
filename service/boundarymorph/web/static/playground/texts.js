// Titles and texts of documents: of a pool they are here, of an index they came with the answer or are asked for.

export class Texts {
  #known = new Map();
  #read;

  // read(id): the document of an index; null where the pool was pasted.
  constructor(documents, read) {
    this.#read = read;
    this.add(documents);
  }

  add(documents) {
    for (const document of documents) this.#known.set(document.id, document);
  }

  title(id) {
    const document = this.#known.get(id);
    const words = document?.title || document?.text?.trim().split("\n", 1)[0];
    return words && words !== id ? words : id;
  }

  // Raises what the service says.
  async text(id) {
    if (!this.#known.has(id) && this.#read) this.#known.set(id, await this.#read(id));
    return this.#known.get(id)?.text ?? "";
  }
}
