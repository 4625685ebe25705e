"""Stores of indexes: a module for each engine, which `boundarymorph` finds by entry points."""
