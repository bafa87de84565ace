"""CPU time of one core per record: murmur2, the record-batch encoder, headers and checksums, and each codec.

Run: ``python benchmarks/encoder.py [flush megabytes]``. Every figure is of the quickest of several rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from airflow_provider_exactlyonce.kafka.compression import ATTRIBUTES, UNCOMPRESSED, Compression
from airflow_provider_exactlyonce.kafka.murmur2 import partitions_for_keys
from airflow_provider_exactlyonce.kafka.record_batch import Body, encode_bodies, with_header

BODY_BYTES_MAXIMUM = 1_000_000
ROUNDS = 9
WORDS = [b"customer", b"purchase", b"itemCode", b"behavior", b"EUR", b"2026-11-21", b'": "', b'", "', b"12.50", b"pay"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows to encode; lengths are the shortest and the longest, in bytes."""

    name: str
    key_lengths: tuple[int, int] | None
    value_lengths: tuple[int, int]
    partitions: int = 4
    timestamps: bool = False
    headers: bool = False


CASES = (
    Case(name="100 B", key_lengths=(10, 10), value_lengths=(100, 100)),
    Case(name="60 to 140 B", key_lengths=(6, 14), value_lengths=(60, 140)),
    Case(name="60 to 140 B, 32 partitions", key_lengths=(6, 14), value_lengths=(60, 140), partitions=32),
    Case(name="60 to 140 B, no key", key_lengths=None, value_lengths=(60, 140)),
    Case(name="60 to 140 B, timestamps", key_lengths=(6, 14), value_lengths=(60, 140), timestamps=True),
    Case(name="60 to 140 B, 2 headers", key_lengths=(6, 14), value_lengths=(60, 140), headers=True),
    Case(name="1 KB", key_lengths=(10, 10), value_lengths=(1_000, 1_000)),
    Case(name="0.6 to 1.4 KB", key_lengths=(6, 14), value_lengths=(600, 1_400)),
    Case(name="0.6 to 1.4 KB, 32 partitions", key_lengths=(6, 14), value_lengths=(600, 1_400), partitions=32),
    Case(name="10 KB", key_lengths=(10, 10), value_lengths=(10_000, 10_000)),
)


def column(generator: np.random.Generator, rows: int, lengths: tuple[int, int]) -> pa.Array:
    """Make a binary column of text that compresses to about a third."""
    offsets = np.concatenate(([0], np.cumsum(generator.integers(lengths[0], lengths[1] + 1, rows)))).astype(np.int32)
    words = [*WORDS, *(b"%d" % number for number in generator.integers(0, 10**9, 30))]
    text = b"".join(words[index] for index in generator.integers(0, len(words), 200_000))
    data = (text * (int(offsets[-1]) // len(text) + 1))[: int(offsets[-1])]
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def best_nanoseconds(work: Callable[[], object], rows: int) -> float:
    """CPU time of the quickest round, for each row."""
    seconds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds) / rows * 1e9


class Rows:
    """The columns of a case, as many rows as a flush has."""

    def __init__(self, case: Case, flush_bytes: int) -> None:
        generator = np.random.default_rng(1)
        self.count = flush_bytes // (sum(case.value_lengths) // 2)
        self.values = column(generator, self.count, case.value_lengths)
        self.digests = pa.array(generator.integers(0, 1 << 62, self.count))
        self.timestamps: int | np.ndarray = 1_790_000_000_000
        self.headers = None
        self.keys = pa.nulls(self.count, pa.binary())
        self.partitions = np.zeros(self.count, dtype=np.int32)
        if case.key_lengths is not None:
            self.keys = column(generator, self.count, case.key_lengths)
            self.partitions = partitions_for_keys(self.keys, case.partitions)
        if case.timestamps:
            self.timestamps = self.timestamps + generator.integers(0, 3_600_000, self.count)
        if case.headers:
            entries = pa.StructArray.from_arrays(
                [
                    column(generator, 2 * self.count, (6, 6)).cast(pa.string()),
                    column(generator, 2 * self.count, (4, 20)),
                ],
                names=["key", "value"],
            )
            self.headers = pa.ListArray.from_arrays(np.arange(0, 2 * self.count + 1, 2, dtype=np.int32), entries)

    def encode(self, compression: Compression = UNCOMPRESSED) -> list[Body]:
        """Encode all rows."""
        return encode_bodies(
            self.keys,
            self.values,
            self.digests,
            self.partitions,
            timestamps=self.timestamps,
            headers=self.headers,
            body_bytes_maximum=BODY_BYTES_MAXIMUM,
            compression=compression,
        )


def with_headers(bodies: list[Body]) -> list[tuple[bytes, memoryview]]:
    """Stamp every body."""
    return [with_header(body, producer_id=1, epoch=0, base_sequence=0) for body in bodies]


def joined(parts: list[tuple[bytes, memoryview]]) -> list[bytes]:
    """Copy every body behind its head."""
    return [b"".join(part) for part in parts]


def main(flush_bytes: int) -> None:
    """Print a line for each case, then one for each codec."""
    print(f"flushes of {flush_bytes >> 20} MiB; ns a record of one core, {ROUNDS} rounds")
    print(f"{'':32}{'rows':>8}{'murmur2':>9}{'encode':>8}{'header':>8}{'join':>8}")
    for case in CASES:
        rows = Rows(case, flush_bytes)
        bodies = rows.encode()
        parts = with_headers(bodies)
        figures = (
            best_nanoseconds(partial(partitions_for_keys, rows.keys, case.partitions), rows.count),
            best_nanoseconds(rows.encode, rows.count),
            best_nanoseconds(partial(with_headers, bodies), rows.count),
            best_nanoseconds(partial(joined, parts), rows.count),
        )
        print(f"{case.name:32}{rows.count:>8}{figures[0]:>9.0f}" + "".join(f"{figure:>8.0f}" for figure in figures[1:]))
    rows = Rows(CASES[7], flush_bytes)
    print(f"{CASES[7].name}, with a codec: ns a record, megabytes/s, bytes left")
    for codec in ATTRIBUTES:
        share = sum(len(body.payload) for body in rows.encode(Compression(codec))) / rows.values.nbytes
        nanoseconds = best_nanoseconds(partial(rows.encode, Compression(codec)), rows.count)
        megabytes = rows.values.nbytes / rows.count / nanoseconds * 1e3
        print(f"{codec:10}{nanoseconds:>8.0f}{megabytes:>8.0f}{share:>7.0%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) << 20 if len(sys.argv) > 1 else 8 << 20)
