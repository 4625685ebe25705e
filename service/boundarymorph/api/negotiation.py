"""Which of two media types a client would rather have (RFC 9110, 12.5.1)."""

from __future__ import annotations

from fastapi import Request

JSON = "application/json"


def prefers(request: Request, kind: str) -> bool:
    """Whether the Accept header gives this media type a higher quality than JSON, which is sent otherwise."""
    accept = ",".join(request.headers.getlist("accept")).lower()
    qualities = dict(map(_quality, accept.split(",")))
    return _of(kind, qualities) > _of(JSON, qualities)


def _quality(part: str) -> tuple[str, float]:
    """Return the media range of one part of the header, and its quality."""
    media_range, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return media_range, float(value)
            except ValueError:
                return media_range, 0.0
    return media_range, 1.0


def _of(kind: str, qualities: dict[str, float]) -> float:
    """Return the quality of the most specific range that includes the media type; 0 if none does."""
    ranges = (kind, f"{kind.partition('/')[0]}/*", "*/*")
    return next((qualities[one] for one in ranges if one in qualities), 0.0)
