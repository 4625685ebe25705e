"""What texts and keys are called: digests, so that nothing a caller writes appears in a key."""

from hashlib import blake2b

DIGEST_BYTES = 16


def digest(*texts: str) -> bytes:
    """16 bytes that stand for these texts, in this order."""
    # Any str has a digest, a lone surrogate too; lengths keep ("ab", "c") and ("a", "bc") apart.
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    if len(parts) > 1:
        parts = [len(part).to_bytes(8, "little") + part for part in parts]
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()
