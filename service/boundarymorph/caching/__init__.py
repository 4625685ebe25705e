"""Caches: cross-encoder scores, in Redis or in this process, and the vectors of queries, in this process.

Both are pure functions of the model (whose name contains revision, precision, length and prompt) and of the texts. So
nothing here goes stale, and a cache may lose anything at any time: what is missing is computed again.

Redis must be 6.2 or later, and a server that only this service writes to, with `maxmemory`, `maxmemory-policy
allkeys-lru` and no persistence. An ACL may forbid all commands but HMGET, HRANDFIELD, HSET, PTTL and PEXPIRE, and all
keys except `boundarymorph:*`. A score with the id of its document takes 30 bytes while the hash is small (at most
`hash-max-listpack-entries` scores, ids of less than 50 bytes), else about 85.
"""
