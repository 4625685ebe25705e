"""Dual encoders, which map texts and queries to unit vectors of one space."""

from boundarymorph.retrieval.encoders.batching import BatchingEncoder
from boundarymorph.retrieval.encoders.encoder import Embeddings, Encoder
from boundarymorph.retrieval.encoders.onnx import OnnxEncoder

__all__ = ["BatchingEncoder", "Embeddings", "Encoder", "OnnxEncoder"]
