"""The named configurations that a request can ask for."""

from boundarymorph.selection.config import Config, SelectionConfig, TrendConfig

PAPER = "boundarymorph"
DEFAULT = "trend"
METHODS: dict[str, Config] = {DEFAULT: TrendConfig(), PAPER: SelectionConfig()}
BY_WORDS = {DEFAULT}  # those that learn from BM25, if the pool has it
