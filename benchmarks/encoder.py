"""Records per second of one core: murmur2 and the record-batch encoder, for fixed and variable lengths.

Run: ``python benchmarks/encoder.py [rows]``
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from airflow_provider_exactlyonce.kafka.murmur2 import partitions_for_keys
from airflow_provider_exactlyonce.kafka.record_batch import encode_bodies, stamp

PARTITIONS = 4
BODY_BYTES_MAXIMUM = 1_000_000
ROUNDS = 7


def random_column(generator: np.random.Generator, rows: int, shortest: int, longest: int) -> pa.Array:
    """Make a binary column of random bytes and lengths."""
    offsets = np.concatenate(([0], np.cumsum(generator.integers(shortest, longest + 1, rows)))).astype(np.int32)
    data = generator.integers(0, 256, int(offsets[-1]), dtype=np.uint8)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def best_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of the quickest round."""
    seconds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def main(rows: int) -> None:
    """Print one line for each pair of key and value lengths."""
    generator = np.random.default_rng(1)
    print(f"{rows} rows, {PARTITIONS} partitions; million records/s of one core: murmur2, encode, encode and stamp")
    for name, key_lengths, value_lengths in (
        ("key 10, value 100", (10, 10), (100, 100)),
        ("key 6-14, value 60-140", (6, 14), (60, 140)),
        ("key 10, value 1000", (10, 10), (1000, 1000)),
        ("key 36, value 0-30", (36, 36), (0, 30)),
    ):
        keys, values = random_column(generator, rows, *key_lengths), random_column(generator, rows, *value_lengths)
        digests = generator.integers(0, 1 << 62, rows)
        partitions = partitions_for_keys(keys, PARTITIONS)

        def encode(
            keys: pa.Array = keys,
            values: pa.Array = values,
            digests: np.ndarray = digests,
            partitions: np.ndarray = partitions,
        ) -> list:
            return encode_bodies(keys, values, digests, partitions, timestamps=1, body_bytes_maximum=BODY_BYTES_MAXIMUM)

        hashing = best_seconds(lambda keys=keys: partitions_for_keys(keys, PARTITIONS))
        encoding = best_seconds(encode)
        stamping = best_seconds(
            lambda encode=encode: [stamp(b, producer_id=1, epoch=0, base_sequence=0) for b in encode()]
        )
        print(f"{name:24}" + "".join(f"{rows / seconds / 1e6:8.1f}" for seconds in (hashing, encoding, stamping)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
