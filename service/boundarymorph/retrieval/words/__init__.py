"""Words and BM25: how texts are cut, what a word counts, and an inverted index in SQLite."""
