"""What people find relevant, learned from a few of their judgements: scorer, retriever and words as evidence."""
