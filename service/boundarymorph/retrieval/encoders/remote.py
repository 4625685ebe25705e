"""An encoder in other processes or on other machines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EncoderFailed, EncoderUnavailable
from boundarymorph.remote import urls
from boundarymorph.remote.balancer import Role
from boundarymorph.remote.model import Options, RemoteModel
from boundarymorph.remote.urls import Endpoint, Spelling
from boundarymorph.remote.wire import Context
from boundarymorph.retrieval.encoders.dialects import DIALECTS
from boundarymorph.retrieval.encoders.encoder import Embeddings, unit_vectors
from boundarymorph.retrieval.encoders.recipe import known_recipe

DOCUMENTS = 256  # of one call that share a timeout

_QUERY, _DOCUMENT = 0, 1
_CHANGED = "the model of the encoder's servers has changed since this request began; try again"
_ROLE = Role("encoder", EncoderUnavailable, EncoderFailed, "encoded", "vectors")
_SPELLING = Spelling("an encoder", DIALECTS)


def parse(url: str) -> Endpoint:
    """Read `SCHEME://HOST:PORT/PREFIX?model=NAME`.

    `tei` and `vllm` are servers of that kind over plain HTTP; `openai` is the hosted service over TLS or, with a host,
    a compatible one. `+http` or `+https` after one of the three changes that. For the latter two, /v1 at the end of the
    base URL is optional.

    Raises InvalidConfiguration; its message contains no password.
    """
    return urls.parse(url, _SPELLING)


class RemoteEncoder:
    """An `Encoder` over HTTP, behind one or more servers that serve the same model.

    Name and dimension are known once it has connected, or encoded a text; before that they raise EncoderUnavailable.
    They are those of the model that gave the last vectors, so code that encodes for an index compares them afterwards.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        dimension: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        """query_prompt, document_prompt: prefixes of the texts, by default those of the model's family; dimension:
        number of leading components to keep, for models trained for that. The timeout applies to a query, or to each
        256 documents.

        Raises InvalidConfiguration.
        """
        self._query_prompt, self._document_prompt = query_prompt, document_prompt
        self._kept = dimension
        self._known: tuple[str, int] | None = None  # the model that gave the last vectors, and their length
        self._model = RemoteModel(endpoints, _ROLE, **options)

    @property
    def identity(self) -> str | None:
        """The name, or None until a server has described itself, and after the servers changed their model."""
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
        """Fetch the descriptions of all servers, and a vector from one; one server that fits is enough.

        Raises EncoderUnavailable, Overloaded or EncoderFailed.
        """
        self._model.check_open()
        await self._model.connect()
        await self._encode(_QUERY, ["probe"])

    async def check(self) -> None:
        """Encode a short query. Raises as `encode_query` does."""
        await self.encode_query("probe")

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        await self._be_connected()
        vectors, _ = await self._encode(_QUERY, [text])
        vector: NDArray[np.float32] = vectors[0]
        return vector

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
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
        """Connect if necessary: prompts depend on the model, and empty results on the dimension."""
        self._model.check_open()
        if self._known is None:
            await self.connect()

    async def _encode(self, kind: int, texts: Sequence[str]) -> tuple[NDArray[np.float32], int]:
        """Return (n, d) unit rows for n > 0 texts, and how many the server says it truncated."""
        prompt = self._prompts(self._model.name)[kind]
        answer = await self._model.call(Context(), [prompt + text for text in texts])
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
        """Return the prompts of queries and of documents."""
        family = known_recipe(model)
        return (
            family.query if self._query_prompt is None else self._query_prompt,
            family.document if self._document_prompt is None else self._document_prompt,
        )
