# pyright: basic
"""Messages as Arrow, which is how Spark takes and gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

SCHEMA = pa.schema([("slot", pa.int32()), ("message", pa.binary())])


def record_batch(rows: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    slots, messages = [slot for slot, _ in rows], [message for _, message in rows]
    return pa.RecordBatch.from_arrays([pa.array(slots, pa.int32()), pa.array(messages, pa.binary())], schema=SCHEMA)


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
