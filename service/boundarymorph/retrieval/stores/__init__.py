"""Tables and collections in the stores that people have, as indexes: one contract, and everything that stores share."""
