"""Caches of cross-encoder scores and embeddings, in Redis or, if none is configured, in this process.

A score and an embedding are pure functions of the model (whose name contains revision, precision, length and prompt)
and of the texts. So nothing here goes stale, and a cache may lose anything at any time: what is missing is computed
again.

**Requirements for Redis.** A server of its own, or one whose other users accept the following: version 6.2 or later,
`maxmemory` set, `maxmemory-policy allkeys-lru` (the bound on memory is Redis's own), no persistence
(`save ""`, `appendonly no`). With `noeviction` a full server refuses writes: reads go on, and the circuit for writes
opens. An ACL may forbid all commands except HMGET, HRANDFIELD, HSET, GET, SET, PTTL, PEXPIRE and UNLINK (in a cluster
also CLUSTER SLOTS and COMMAND), and all keys except `boundarymorph:*`.

**Memory.** In Redis, a score with the id of its document takes 35 bytes as long as the hash is small (at most
`hash-max-listpack-entries` scores, ids of less than 50 bytes), else about 90; an embedding takes 4d + 170 bytes. With a
secret each takes 4 bytes more.
"""
