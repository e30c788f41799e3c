"""The progress of a run: counters that the stages write and any thread may read; resources of the process."""

import re
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.batching.dynamic import CloseReason
from headrace.core.block import Failure, FailureKind
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.runs.items import ScoredBatch
from headrace.runs.records import Counts

_STATUS = Path("/proc/self/status")
_PEAK_KIB = re.compile(rb"^VmHWM:\s*(\d+) kB$", re.MULTILINE)


@dataclass(slots=True)
class RunProgress:
    """The counters of one run. One thread writes each of them; readers may see slightly old values.

    `records` counts delivered records: ``records == rows_out + rows_failed``. The counts of a
    resumed run include the earlier ones.
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
    """Objects that an earlier process or append read to their ends."""
    bytes_before: int = 0
    """The bytes of these objects."""
    records_before: int = 0
    """Records that were delivered earlier; they do not count for the rate."""
    records_to_replay: int = 0
    """Records that the model receives again before new ones, to rebuild its sequences."""
    records_replayed: int = 0
    """The number of replayed records so far."""
    first_failure: Failure | None = None
    """The first failed record of this process or append."""
    first_broken: Failure | None = None
    """The first object or member that was not read to its end."""

    def begin(self, *, objects_before: int, bytes_before: int) -> None:
        """Start a new part of the run: what follows is new. The run calls it."""
        self.objects_before, self.bytes_before = objects_before, bytes_before
        self.records_before = self.records
        self.objects_read = self.bytes_read = 0
        self.first_failure = self.first_broken = None

    @property
    def counts(self) -> Counts:
        """The numbers of delivered records."""
        return Counts(self.records, self.rows_out, self.rows_failed, self.objects_broken)

    @counts.setter
    def counts(self, counts: Counts) -> None:
        self.records, self.rows_out = counts.records_in, counts.rows_out
        self.rows_failed, self.objects_broken = counts.rows_failed, counts.objects_broken

    def set_read(self, bytes_read: int, objects_read: int) -> None:
        """Set the read position. The reader calls it."""
        self.bytes_read = bytes_read
        self.objects_read = objects_read

    def batch_submitted(self, reason: CloseReason) -> None:
        """Count a closed batch. The feeder calls it."""
        self.closed_by[reason] += 1

    def batch_delivered(self, batch: ScoredBatch) -> None:
        """Count a delivered batch. The iterating thread calls it."""
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


def cpu_s() -> float:
    """Return the processor seconds of all threads, in user and system mode."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_memory_mb() -> float:
    """Return the peak memory of the process in MiB, accurate to about 1 MiB."""
    try:
        # On Linux, a new process inherits the maximum of its parent everywhere but in this file.
        found = _PEAK_KIB.search(_STATUS.read_bytes())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) / 1024
    # The BSDs and macOS report bytes, Linux reports KiB.
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class WorkFigures(Protocol):
    """Figures of the work on a run: of the model, and of other processes. Any thread may read them."""

    @property
    def metadata(self) -> ModelMetadata:
        """The model's metadata; available once the model is loaded."""
        ...

    def statistics(self) -> PredictorStatistics:
        """Return the model's statistics so far."""
        ...

    def reading(self) -> Sequence[str]:
        """Return the objects that are being read."""
        ...

    def cpu_s(self) -> float:
        """Return the processor time of other processes in seconds; 0 if there are none."""
        return 0.0

    def peak_memory_mb(self) -> float:
        """Return the sum of the other processes' peak memory in MB; 0 if there are none."""
        return 0.0
