"""Indexes stored as collections of Milvus, which may run on any number of machines."""
