"""Scored batches and reports for tests of observations and pages."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.tensor import Array
from headrace.formats.contract import BlockSelection
from headrace.reports.report import Report
from headrace.runs.items import Cursor, ScoredBatch, ScoredSpan


def failure(
    record: int = 0,
    why: str = "not a number",
    raw: bytes = b"a,b",
    *,
    object: str = "s3://b/a.csv",
    **more: Any,
) -> Failure:
    position = Position(object, more.pop("member", None), record, record + 1, 10 * record)
    return Failure(position, more.pop("kind", FailureKind.DECODE), why, raw, **more)


def scored(outputs: Mapping[str, Array] | None = None, failures: Sequence[Failure] = ()) -> ScoredBatch:
    """Return a batch of one block with these outputs and failures."""
    changes = outputs or {}
    rows = len(next(iter(changes.values()), ()))
    block = Block(Position(), b"x" * rows, np.arange(rows), np.arange(rows) + 1)
    span = ScoredSpan(BlockSelection(block, 0, rows), tuple(failures))
    return ScoredBatch((span,), changes, rows + len(failures), Cursor(0))


def report(**changes: Any) -> Report:
    """Return the report of a run without failures, with these changes."""
    defaults: dict[str, Any] = {
        "kind": "transform",
        "status": "complete",
        "source": "s3://b/in/",
        "output": "s3://b/out/",
        "model": "fraud",
        "objects": 3,
        "objects_done": 3,
        "objects_with_failures": 0,
        "objects_broken": 0,
        "objects_suppressed": 0,
        "records_in": 1_234_567,
        "rows_out": 1_234_567,
        "rows_failed": 0,
        "rows_suppressed": 0,
        "parts": 0,
        "out_bytes": 23_456_789,
        "bytes_read": 412_345_678,
        "tasks": 7,
        "elapsed_s": 12.34,
        "rows_per_s": 100_046.8,
        "cpu_s": 16.4,
        "peak_memory_mb": 312.4,
        "instance_busy_share": 0.8732,
        "instance_starved_s": 1.61,
        "model_calls": 1206,
        "retries": 2,
        "batches_closed_by": {"rows": 1200, "end": 6},
    }
    return Report(**(defaults | changes))
