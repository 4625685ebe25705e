"""Dual encoders, which map texts and queries to unit vectors of one space."""

from boundarymorph.retrieval.encoders.encoder import BatchingEncoder, Embeddings, Encoder

__all__ = ["BatchingEncoder", "Embeddings", "Encoder"]
