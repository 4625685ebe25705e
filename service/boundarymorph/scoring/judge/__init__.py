"""A chat model as the scorer. It grades one passage at a time from 0 to 3; the score is the expected grade / 3.

`dialect.py` has the prompt, requests and the reading of answers, `judge.py` the `Scorer`.
"""
