"""Cache cross-encoder scores and the vectors of queries.

Scores are in Redis or in this process, vectors in this process. Both are pure functions of the texts and of the model,
whose name contains its revision, precision, length, and prompt. So nothing here goes stale, and a cache may lose
anything at any time: missing values are computed again.
"""
