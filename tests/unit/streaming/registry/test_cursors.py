"""Reading many records at once: each is judged by its own bytes."""

from __future__ import annotations

import pyarrow as pa

from airflow_provider_exactlyonce.streaming.registry.cursors import ALL, Cursor


def test_a_number_that_is_cut_off_is_not_read_on_in_the_next_record() -> None:
    values = [b"\x80\x80", b"\x80" * 9 + b"\x7f", b"\x80" * 9 + b"\x01", b"\x80" * 9, b"\x80" * 11]
    cursor = Cursor(pa.array(values, pa.binary()), 0)
    cursor.number(ALL, "n")
    cut_off, too_long = "it ends in the middle of n", "n has more than 64 bits"
    assert cursor.reasons == {0: cut_off, 1: too_long, 3: cut_off, 4: too_long}
