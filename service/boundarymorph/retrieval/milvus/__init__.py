"""Indexes that are collections of Milvus, on any number of machines."""
