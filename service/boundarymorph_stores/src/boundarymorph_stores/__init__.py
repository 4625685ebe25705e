"""Provide stores of indexes, in a module for each engine.

`boundarymorph` finds them by entry points.
"""
