"""The common part of scorers and encoders that run a model in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from boundarymorph.inference.batching.batcher import Batcher
from boundarymorph.inference.batching.model import Item, Model, ModelRole

ModelType = TypeVar("ModelType", bound=Model[Any])


class Served(Generic[ModelType, Item]):
    """A model that serves all requests in shared batches; see `Batcher` for their order and for what is rejected."""

    def __init__(
        self,
        model: ModelType,
        role: ModelRole,
        *,
        queue_tokens: int,
        share: float = 1.0,
        patience: float,
        on_lost: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.batcher: Batcher[Item] = Batcher(
            model, role, queue_tokens=queue_tokens, share=share, patience=patience, on_lost=on_lost, clock=clock
        )

    @property
    def name(self) -> str:
        """Models of the same name give the same results."""
        return self.model.name

    @property
    def queue_tokens(self) -> int:
        """Most tokens that may wait."""
        return self.batcher.queue_tokens

    @property
    def batch_tokens(self) -> int:
        """Most tokens of a batch now: fewer than the model's own number while the device has too little memory."""
        return self.batcher.batch_tokens

    def waiting(self) -> tuple[int, int]:
        """Number of waiting items, and of their tokens."""
        return self.batcher.waiting()

    async def close(self) -> None:
        """Finish the running batches, fail waiting requests, release the model."""
        await self.batcher.close()
