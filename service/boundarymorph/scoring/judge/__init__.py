"""A chat model as the scorer: it grades one passage at a time from 0 to 3, and the score is the expected grade / 3.

`wording.py` has what it is told, `dialect.py` the requests and how answers are read, `judge.py` the `Scorer`.
"""
