"""How a stream is doing, for whoever looks: counters that the stages keep and anyone may read."""

from collections import Counter
from dataclasses import dataclass, field

from headrace.batching.dynamic import CloseReason
from headrace.core.block import Failure, FailureKind
from headrace.pipeline.items import ScoredBatch


@dataclass(slots=True)
class Progress:
    """Counters of one run. Each is written by one thread; reading a little late harms nothing.

    `records` counts what was delivered: ``records == rows_out + rows_failed``. Resumed counts are included.
    """

    bytes_total: int = 0
    objects_total: int = 0
    bytes_read: int = 0
    objects_read: int = 0
    records: int = 0
    rows_out: int = 0
    rows_failed: int = 0
    objects_broken: int = 0
    batches: int = 0
    closed_by: Counter[CloseReason] = field(default_factory=Counter[CloseReason])
    parts: int = 0
    objects_before: int = 0
    """Objects that had been read to their ends before: by an earlier process, or an earlier append."""
    bytes_before: int = 0
    """Their bytes."""
    records_before: int = 0
    """Records that had been delivered before: not part of this rate."""
    records_to_replay: int = 0
    """Records that are given to the model again, for the states of its sequences, before anything new."""
    records_replayed: int = 0
    """How many of them have been."""
    first_failure: Failure | None = None
    """The first record of this process, or append, that failed."""
    first_broken: Failure | None = None
    """The first object or member that could not be read to its end."""

    def begin(self, *, objects_before: int, bytes_before: int) -> None:
        """By the run: what comes from here on is new."""
        self.objects_before, self.bytes_before = objects_before, bytes_before
        self.records_before = self.records
        self.objects_read = self.bytes_read = 0
        self.first_failure = self.first_broken = None

    def read(self, bytes_read: int, objects_read: int) -> None:
        """By the reader: how far it has come."""
        self.bytes_read = bytes_read
        self.objects_read = objects_read

    def asked(self, reason: CloseReason) -> None:
        """By the feeder: a batch closed."""
        self.closed_by[reason] += 1

    def delivered(self, batch: ScoredBatch) -> None:
        """By the iterating thread: a batch came back, in order."""
        broken, failures = batch.broken, batch.failures
        self.batches += 1
        self.records += batch.entries - broken
        self.rows_out += batch.rows
        self.rows_failed += len(failures) - broken
        self.objects_broken += broken
        if failures and self.first_failure is None:
            self.first_failure = next((f for f in failures if f.kind is not FailureKind.OBJECT), None)
        if broken and self.first_broken is None:
            self.first_broken = next(f for f in failures if f.kind is FailureKind.OBJECT)
