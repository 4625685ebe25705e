"""Everything that has state, each against a model of a few lines, by random operations with tiny constants."""
