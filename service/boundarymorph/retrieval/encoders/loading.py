"""An encoder of this process that is loaded after its other parts are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EncoderUnavailable
from boundarymorph.inference.loading import Loading
from boundarymorph.retrieval.encoders.encoder import Embeddings, Encoder


class LoadingEncoder(Loading[Encoder]):
    """An `Encoder`; raises EncoderUnavailable until its model is loaded."""

    def __init__(self, load: Callable[[], Encoder]) -> None:
        super().__init__(load, EncoderUnavailable)

    @property
    def dimension(self) -> int:
        return self.loaded.dimension

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        return await self.loaded.encode_query(text)

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        return await self.loaded.encode_documents(texts)
