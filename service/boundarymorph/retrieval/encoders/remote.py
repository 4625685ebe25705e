"""Call an encoder in other processes or on other machines: the wire formats of servers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pybase64
from numpy.typing import NDArray

from boundarymorph.errors import EncoderFailed, EncoderUnavailable
from boundarymorph.remote import urls, wire
from boundarymorph.remote.balancer import Role
from boundarymorph.remote.model import RemoteModel
from boundarymorph.remote.urls import Endpoint, Spelling
from boundarymorph.retrieval.encoders import Embeddings, known_recipe
from boundarymorph.retrieval.ranking import unit_vectors

VECTOR_BYTES = 16_384 * 32  # bytes of a vector in JSON, with more dimensions than models have
DOCUMENTS = 256  # texts of one call that share a timeout
_QUERY, _DOCUMENT = 0, 1
_CHANGED = "the model of the encoder's servers has changed since this request began; try again"
_ROLE = Role("encoder", EncoderUnavailable, EncoderFailed, "encoded", "vectors")


class TextEmbeddingsInference(wire.TextEmbeddingsInference):
    path = "/embed"
    model_type, called = "embedding", "dual encoder"
    answer_bytes = VECTOR_BYTES

    def request(self, model: str, context: wire.TextContext, texts: Sequence[str], seconds: float) -> wire.Request:
        return wire.Request(self.path, {"inputs": list(texts), "truncate": True, "normalize": True})

    def read(self, body: bytes, count: int) -> wire.Answer:
        vectors = wire.parse_json(body)
        if not isinstance(vectors, list):
            raise wire.MalformedAnswer(f"the answer is {wire.describe_value(vectors)}, not an array")
        return wire.Answer(_rows(vectors, count))


class OpenAI(wire.Format):
    """OpenAI's API and compatible ones.

    The server rejects a text that is too long for the model.
    """

    name, path, version_optional = "openai", "/v1/embeddings", True
    home: str | None = "https://api.openai.com"
    most_texts, most_bytes = 512, 1_000_000
    answer_bytes = VECTOR_BYTES

    def request(self, model: str, context: wire.TextContext, texts: Sequence[str], seconds: float) -> wire.Request:
        return wire.Request(self.path, {"model": model, "input": list(texts), "encoding_format": "base64"})

    def read(self, body: bytes, count: int) -> wire.Answer:
        items = [wire.mapping(item) for item in wire.array(wire.mapping(wire.parse_json(body)), "data")]
        rows = wire.by_index(((item.get("index"), item.get("embedding")) for item in items), count, "vector")
        return wire.Answer(_rows([rows.get(index) for index in range(count)], count))


class VLLM(OpenAI):
    """vLLM's route of the same name, which truncates texts that are too long for the model."""

    name, description_path = "vllm", "/v1/models"
    home = None

    def request(self, model: str, context: wire.TextContext, texts: Sequence[str], seconds: float) -> wire.Request:
        asked = super().request(model, context, texts, seconds)
        return wire.Request(asked.path, asked.body | {"truncate_prompt_tokens": -1})

    def describe(self, body: bytes, model: str | None) -> wire.Description:
        return wire.vllm_description(body, model, self.most_texts)


FORMATS: dict[str, wire.Format] = {
    wire_format.name: wire_format for wire_format in (TextEmbeddingsInference(), OpenAI(), VLLM())
}
_SPELLING = Spelling("an encoder", FORMATS)


def _rows(vectors: Sequence[object], count: int) -> NDArray[np.float32]:
    """Return (count, d) vectors.

    Each is given as an array of numbers or as base64 of little-endian float32.
    """
    if len(vectors) != count:
        raise wire.MalformedAnswer(f"there are {len(vectors)} vectors for {count} texts")
    rows = [_row(vector, index) for index, vector in enumerate(vectors)]
    widths = sorted({len(row) for row in rows})
    if len(widths) > 1 or widths == [0]:
        raise wire.MalformedAnswer(f"there are vectors of {' and '.join(map(str, widths))} dimensions")
    with np.errstate(over="ignore"):
        matrix = np.array(rows, dtype=np.float32)
    if not np.isfinite(matrix).all():
        raise wire.MalformedAnswer("there are components that are not finite numbers")
    return matrix


def _row(vector: object, index: int) -> NDArray[Any]:
    try:
        if isinstance(vector, str):
            return np.frombuffer(pybase64.b64decode(vector, validate=True), dtype="<f4")
        if isinstance(vector, list) and not any(isinstance(component, str | bool) for component in vector):
            row = np.array(vector, dtype=np.float64)
            if row.ndim == 1:
                return row
    except (ValueError, TypeError):
        pass
    raise wire.MalformedAnswer(
        f"the vector of text {index} is {wire.describe_value(vector)}, neither numbers nor base64"
    )


def parse(url: str) -> Endpoint:
    """Read `SCHEME://HOST:PORT/PREFIX?model=NAME`.

    `tei` and `vllm` are over plain HTTP; `openai`, hosted or with a compatible host, is over TLS; `+http` or `+https`
    changes that.

    Raises:
        InvalidConfiguration: If it is malformed; the message does not contain the password.
    """
    return urls.parse(url, _SPELLING)


class RemoteEncoder:
    """An `Encoder` over HTTP.

    Name and dimension, of the last answer's model, may raise EncoderUnavailable.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        dimension: int | None = None,
        **options: Any,
    ) -> None:
        """Prepare the connections. The timeout is for a query, or for each 256 documents.

        Args:
            endpoints: The servers.
            query_prompt: The prefix of queries; by default that of the model's family.
            document_prompt: The prefix of documents; by default that of the model's family.
            dimension: Leading components to keep.
            options: Further arguments of `RemoteModel`.

        Raises:
            InvalidConfiguration: If the endpoints do not fit together.
        """
        self._query_prompt, self._document_prompt = query_prompt, document_prompt
        self._kept = dimension
        self._known: tuple[str, int] | None = None  # the model that gave the last vectors, and their length
        self._model = RemoteModel(endpoints, _ROLE, **options)

    @property
    def identity(self) -> str | None:
        """The name, or None while no server has described itself or after their model changed."""
        return None if self._known is None or self._known[0] != self._model.identity else self.name

    @property
    def name(self) -> str:
        """The model as its server names it, with a hash of the prompts and the dimension."""
        model, _ = self._reached()
        query, document = self._prompts(model)
        recipe = json.dumps({"query": query, "document": document, "dimension": self.dimension}, sort_keys=True)
        return f"{model}/{hashlib.sha256(recipe.encode()).hexdigest()[:8]}"

    @property
    def dimension(self) -> int:
        return self._kept or self._reached()[1]

    async def connect(self) -> None:
        """Fetch the descriptions of all servers, and a vector from one.

        Raises as `encode_query` does.
        """
        self._model.check_open()
        await self._model.connect()
        await self._encode(_QUERY, ["probe"])

    async def check(self) -> None:
        await self.encode_query("probe")

    async def encode_query(self, text: str, caller: str = "") -> NDArray[np.float32]:
        await self._be_connected()
        vectors, _ = await self._encode(_QUERY, [text])
        vector: NDArray[np.float32] = vectors[0]
        return vector

    async def encode_documents(self, texts: Sequence[str], caller: str = "") -> Embeddings:
        await self._be_connected()
        parts, truncated, models = [np.empty((0, self.dimension), dtype=np.float32)], 0, set[str]()
        for start in range(0, len(texts), DOCUMENTS):
            vectors, cut = await self._encode(_DOCUMENT, texts[start : start + DOCUMENTS])
            parts.append(vectors)
            truncated += cut
            models.add(self._reached()[0])
            if len(models) > 1:
                raise EncoderUnavailable(_CHANGED, public=_CHANGED)
        return Embeddings(np.concatenate(parts[1:] or parts), truncated)

    async def close(self) -> None:
        await self._model.close()

    async def _be_connected(self) -> None:
        self._model.check_open()
        if self._known is None:
            await self.connect()

    async def _encode(self, kind: int, texts: Sequence[str]) -> tuple[NDArray[np.float32], int]:
        """Return (n, d) unit rows for n > 0 texts, and the number that the server truncated."""
        prompt = self._prompts(self._model.name)[kind]
        answer = await self._model.call(wire.TextContext(), [prompt + text for text in texts])
        if answer.served != self._model.name or self._prompts(self._model.name)[kind] != prompt:
            raise EncoderUnavailable(_CHANGED, public=_CHANGED)
        width = answer.values.shape[1]
        if self._known is not None and self._known[0] == answer.served and self._known[1] != width:
            raise EncoderFailed(f"{self._model.name} gives {width} dimensions now, but gave {self._known[1]} before")
        if self._kept is not None and self._kept > width:
            raise EncoderFailed(f"{self._model.name} gives {width} dimensions, fewer than the {self._kept} to be kept")
        rows = unit_vectors(answer.values[:, : self._kept])
        if not np.isfinite(rows).all():
            raise EncoderFailed(f"{self._model.name} gave a vector without a direction")
        self._known = self._model.name, width
        return rows, answer.truncated

    def _reached(self) -> tuple[str, int]:
        if self._known is None:
            raise EncoderUnavailable("no encoder has been reached yet; only its server knows its name and dimension")
        return self._known

    def _prompts(self, model: str) -> tuple[str, str]:
        family = known_recipe(model)
        return (
            family.query if self._query_prompt is None else self._query_prompt,
            family.document if self._document_prompt is None else self._document_prompt,
        )
