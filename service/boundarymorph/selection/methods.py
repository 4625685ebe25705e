"""The named configurations that a request can ask for."""

from boundarymorph.selection.config import SelectionConfig

PAPER = "boundarymorph"
DEFAULT = PAPER
METHODS: dict[str, SelectionConfig] = {PAPER: SelectionConfig()}
