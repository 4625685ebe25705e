"""Dual encoders, which map texts and queries to unit vectors of one space."""

from boundarymorph.retrieval.encoders.batching import BatchingEncoder
from boundarymorph.retrieval.encoders.encoder import Embeddings, Encoder

__all__ = ["BatchingEncoder", "Embeddings", "Encoder"]
