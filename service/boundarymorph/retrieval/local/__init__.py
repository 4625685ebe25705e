"""Indexes in a directory of this machine: documents and words in SQLite, vectors in memory or on a device."""
