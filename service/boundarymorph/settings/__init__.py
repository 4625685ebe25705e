"""Configuration: read once, at the edge, from the environment and a TOML file."""

from boundarymorph.settings.sections import (
    UNLIMITED,
    AgentSettings,
    CacheSettings,
    EncoderSettings,
    JudgeSettings,
    Limits,
    MilvusCollection,
    MilvusParameters,
    MilvusSettings,
    ModelSettings,
    RateLimitSettings,
    RetrieverSettings,
    ScorerSettings,
    TraceSettings,
    WorkSettings,
)
from boundarymorph.settings.settings import DEFAULTS_WITHIN, Settings, mistakes

__all__ = [
    "DEFAULTS_WITHIN",
    "UNLIMITED",
    "AgentSettings",
    "CacheSettings",
    "EncoderSettings",
    "JudgeSettings",
    "Limits",
    "MilvusCollection",
    "MilvusParameters",
    "MilvusSettings",
    "ModelSettings",
    "RateLimitSettings",
    "RetrieverSettings",
    "ScorerSettings",
    "Settings",
    "TraceSettings",
    "WorkSettings",
    "mistakes",
]
