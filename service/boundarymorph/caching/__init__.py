"""Caches: cross-encoder scores, in Redis or in this process, and the vectors of queries, in this process.

Both are pure functions of the model (whose name contains revision, precision, length and prompt) and of the texts. So
nothing here goes stale, and a cache may lose anything at any time: what is missing is computed again.

**Requirements for Redis.** A server that only this service writes to, version 6.2 or later, with `maxmemory` set,
`maxmemory-policy allkeys-lru` (the bound on memory is Redis's own) and no persistence (`save ""`, `appendonly no`).
With `noeviction` a full server refuses writes: reads go on, and the circuit for writes opens. An ACL may forbid all
commands except HMGET, HRANDFIELD, HSET, PTTL and PEXPIRE, and all keys except `boundarymorph:*`.

**Memory.** A score with the id of its document takes 30 bytes in Redis as long as the hash is small (at most
`hash-max-listpack-entries` scores, ids of less than 50 bytes), else about 85.
"""
