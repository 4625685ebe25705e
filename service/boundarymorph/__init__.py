"""BoundaryMORPH: spend B cross-encoder calls where they change which k documents are returned."""

from importlib.metadata import version

__version__ = version("boundarymorph")
