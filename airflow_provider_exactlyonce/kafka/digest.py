"""A record's digest as Spark computes it, for readers of a topic.

The sink lets Spark compute ``xxhash64(key, isnull(key), value, isnull(value), headers)``. Spark hashes one value after
the other, with the hash so far as the next one's seed: bytes and text as they are, a boolean as an integer of four
bytes, an array element by element, a struct field by field; a null leaves the hash as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from xxhash import xxh64_intdigest

#: The header of a record that a backfill wrote into the sink itself, with the backfill's name. No part of the digest:
#: a record that is written again unchanged keeps its digest.
BACKFILL_HEADER: Final = "exactlyonce.backfill"

_SEED: Final = 42  # Spark's
_PRESENT: Final = (0).to_bytes(4, "little")
_ABSENT: Final = (1).to_bytes(4, "little")

#: Digests are summed modulo this.
MODULUS: Final = 2**64


def record_digest(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None = None
) -> int:
    """Return a record's digest as an unsigned integer of 64 bits.

    :param headers: in their order; none and an empty sequence are the same, and the mark of a backfill is left out
    """
    digest: int = _SEED
    for part in (key, value):
        if part is None:
            digest = xxh64_intdigest(_ABSENT, digest)
        else:
            digest = xxh64_intdigest(_PRESENT, xxh64_intdigest(part, digest))
    for name, content in headers or ():
        if name == BACKFILL_HEADER:
            continue
        digest = xxh64_intdigest(name.encode(), digest)
        if content is not None:
            digest = xxh64_intdigest(content, digest)
    return digest
