"""What the encoder does in a process that has loaded nothing else."""

from __future__ import annotations

import subprocess
import sys


def test_encoding_imports_no_pandas() -> None:
    """It would cost every driver's first batch a second of CPU per worker."""
    program = (
        "import sys, pyarrow as pa;"
        "from airflow_provider_exactlyonce.streaming.commit import topic_routing as r, write_stage as w;"
        "keys = pa.BinaryArray.from_buffers(pa.binary(), 2, [pa.py_buffer(bytes([1])),"
        " pa.py_buffer((0).to_bytes(4, 'little') + (1).to_bytes(4, 'little') * 2), pa.py_buffer(b'k')]);"
        "digests = pa.Int64Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(bytes(16))]);"
        "entries = pa.StructArray.from_arrays([keys.slice(0, 1).view(pa.string()), keys.slice(1)], ['key', 'value']);"
        "offsets = pa.py_buffer((0).to_bytes(4, 'little') + (1).to_bytes(4, 'little') * 2);"
        "headers = pa.Array.from_buffers(pa.list_(entries.type), 2, [None, offsets], children=[entries]);"
        "bodies = w.record_batch.encode_bodies(keys, keys, digests, r.partitions_for_keys(keys, 3).clip(0),"
        " timestamps=w.np.array([0, 1]), headers=headers, body_bytes_maximum=1000, compression=w.Compression('zstd'));"
        "answer = w._answer(7, b'{}'); answer.validate(full=True);"
        "print(sum(body.records for body in bodies), 'pandas' in sys.modules, answer.to_pylist())"
    )
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert said.strip() == "2 False [{'task': 7, 'written': '{}'}]"
