"""Use tables and collections in existing stores as indexes.

There is one contract for stores, and everything that they share.
"""
