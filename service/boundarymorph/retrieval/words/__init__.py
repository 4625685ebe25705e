"""Words and BM25: splitting texts into words, weighing them, and an inverted index in SQLite."""
