"""Keep indexes in a directory of this machine.

Documents and words are in SQLite, vectors in memory or on a device.
"""
