"""Digests of texts, so that nothing a caller writes appears in a key."""

from hashlib import blake2b

DIGEST_BYTES = 16


def digest(*texts: str) -> bytes:
    """Return 16 bytes that identify these texts, in this order."""
    # Every str has a digest, even with a lone surrogate; lengths keep ("ab", "c") and ("a", "bc") apart.
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    if len(parts) > 1:
        parts = [len(part).to_bytes(8, "little") + part for part in parts]
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()
