"""Configuration: read once, at the edge, from the environment and a TOML file."""

from boundarymorph.settings.sections import (
    SERVICE,
    UNLIMITED,
    AgentSettings,
    Attached,
    CacheSettings,
    EncoderSettings,
    JudgeSettings,
    Limits,
    ModelSettings,
    RateLimitSettings,
    RetrieverSettings,
    ScorerSettings,
    StoreSettings,
    TraceSettings,
    WorkSettings,
    secret,
)
from boundarymorph.settings.settings import DEFAULTS_WITHIN, Settings, mistakes

__all__ = [
    "DEFAULTS_WITHIN",
    "SERVICE",
    "UNLIMITED",
    "AgentSettings",
    "Attached",
    "CacheSettings",
    "EncoderSettings",
    "JudgeSettings",
    "Limits",
    "ModelSettings",
    "RateLimitSettings",
    "RetrieverSettings",
    "ScorerSettings",
    "Settings",
    "StoreSettings",
    "TraceSettings",
    "WorkSettings",
    "mistakes",
    "secret",
]
