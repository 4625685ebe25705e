"""Cross-encoder scores and embeddings that were computed before, in Redis, or in this process where there is none.

A score and an embedding are pure functions of the model (whose name contains revision, precision, length and prompt)
and of the texts. So nothing here goes stale, and a cache may lose anything at any time: what is not there is
computed again.

**What Redis should be.** One of its own, or one whose other users agree to this: version 6.2 or later,
`maxmemory` set, `maxmemory-policy allkeys-lru` (the bound on memory is Redis's own), no persistence
(`save ""`, `appendonly no`). With `noeviction` a full server refuses writes: reads go on, and the circuit for writes
opens. An ACL may forbid all commands but HMGET, HRANDFIELD, HSET, GET, SET, PTTL, PEXPIRE and UNLINK, and in a cluster
CLUSTER SLOTS and COMMAND, and all keys but `boundarymorph:*`.

**Room it takes.** In Redis 35 bytes a score and the id of its document, as long as the hash is small
(`hash-max-listpack-entries` scores, ids of less than 50 bytes), else about 90; 4d + 170 bytes an embedding.
"""
