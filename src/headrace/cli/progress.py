"""Show the progress of a run: a bar on a terminal, plain lines elsewhere, or JSON lines.

Bars and lines go to standard error, JSON lines to standard output.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.core.predictor import PredictorStatistics
from headrace.runs.work import RunProgress

Style = Literal["bar", "lines", "json", "none"]

_INTERVAL_S: dict[Style, float] = {"bar": 0.2, "lines": 5.0, "json": 1.0, "none": 3600.0}
_LISTING = "listing the source"
_NAMES_SHOWN = 2


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """The progress of a run at one moment."""

    bytes_read: int
    bytes_total: int
    objects_read: int
    objects_total: int
    records: int
    rows_failed: int
    rows_per_s: float
    instance_busy_share: float
    reading: tuple[str, ...] = ()
    """The objects that are being read; empty if the run does not report them."""
    records_replayed: int = 0
    records_to_replay: int = 0
    """Records sent to the model again to restore sequence states, before any new record."""


class ProgressDisplay:
    """A context manager that shows a run's counters at regular intervals, in a thread."""

    def __init__(
        self,
        style: Style,
        counters: RunProgress,
        statistics: Callable[[], PredictorStatistics],
        *,
        reading: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._style: Style = style
        self._counters = counters
        self._statistics = statistics
        self._reading = reading
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-display", daemon=True)
        self._console = Console(stderr=True)
        self._started_s = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self._style == "bar":
            self._bar = Progress(
                BarColumn(bar_width=None),
                TextColumn("{task.fields[done]}"),
                TextColumn("[bold]{task.fields[records]}[/] records{task.fields[failed]}"),
                TextColumn("{task.fields[rate]} rows/s"),
                TextColumn("busy {task.fields[busy]}{task.fields[eta]}"),
                TimeRemainingColumn(compact=True),
                TextColumn("[dim]{task.fields[reading]}[/]"),
                console=self._console,
                expand=True,
            )
            self._bar.add_task(
                "", total=None, done=_LISTING, records="0", failed="", rate="0", busy="0%", eta="", reading=""
            )
            self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._bar:
            self._show()
            self._bar.stop()

    def _run(self) -> None:
        while not self._ended.wait(_INTERVAL_S[self._style]):
            self._show()

    def snapshot(self) -> ProgressSnapshot:
        """Return the current progress."""
        counters, now = self._counters, time.monotonic()
        records = counters.records
        rate = (records - counters.records_before) / max(now - self._started_s, 1e-9)
        return ProgressSnapshot(
            bytes_read=counters.bytes_before + counters.bytes_read,
            bytes_total=counters.bytes_total,
            objects_read=counters.objects_before + counters.objects_read,
            objects_total=counters.objects_total,
            records=records,
            rows_failed=counters.rows_failed,
            rows_per_s=round(rate, 1),
            instance_busy_share=round(self._statistics().busy_share, 3),
            reading=tuple(self._reading()) if self._reading else (),
            records_replayed=counters.records_replayed,
            records_to_replay=counters.records_to_replay,
        )

    def _show(self) -> None:
        snapshot = self.snapshot()
        if self._style == "json":
            line = {"event": "progress"} | {k: getattr(snapshot, k) for k in ProgressSnapshot.__slots__}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        elif self._bar:
            self._bar.update(
                self._bar.task_ids[0],
                total=snapshot.bytes_total or None,
                completed=snapshot.bytes_read,
                done=_read_text(snapshot, "/", percent=True),
                records=f"{snapshot.records:,}",
                rate=f"{snapshot.rows_per_s:,.0f}",
                busy=f"{snapshot.instance_busy_share:.0%}",
                failed=f" [red]{snapshot.rows_failed:,} failed[/]" if snapshot.rows_failed else "",
                eta=" ETA" if snapshot.bytes_total else "",
                reading=_objects_text(snapshot),
            )
        elif self._style == "lines":
            self._console.print(
                f"{_read_text(snapshot, ' of ')}, {snapshot.records:,} records, "
                f"{snapshot.rows_per_s:,.0f} rows/s, {snapshot.rows_failed:,} failed, "
                f"instances busy {snapshot.instance_busy_share:.0%}{_objects_text(snapshot)}",
                highlight=False,
                soft_wrap=True,
            )


def _objects_text(snapshot: ProgressSnapshot) -> str:
    """Return the number of finished objects and the names of objects that are being read."""
    if not snapshot.reading:
        return ""
    names = ", ".join(uri.rsplit("/", 1)[-1] for uri in snapshot.reading[:_NAMES_SHOWN])
    more = ", …" if len(snapshot.reading) > _NAMES_SHOWN else ""
    return f"  {snapshot.objects_read:,}/{snapshot.objects_total:,} {names}{more}"


def _read_text(snapshot: ProgressSnapshot, separator: str, *, percent: bool = False) -> str:
    """Return the size read so far, with the total if it is known.

    Some web servers do not report the size of an object.
    """
    if not snapshot.objects_total:
        return _LISTING
    if snapshot.records_replayed < snapshot.records_to_replay:
        replayed = f"{snapshot.records_replayed:,}{separator}{snapshot.records_to_replay:,}"
        return f"replaying {replayed} records to restore sequence states"
    read, total = decimal(snapshot.bytes_read), snapshot.bytes_total
    if not total:
        return read
    share = f"{snapshot.bytes_read / total:>4.0%} " if percent else ""
    return f"{share}{read}{separator}{decimal(total)}"


def choose_style(*, json_lines: bool, quiet: bool) -> Style:
    """Return the style: JSON or none on request, otherwise a bar on a terminal or lines."""
    if json_lines:
        return "json"
    if quiet:
        return "none"
    return "bar" if sys.stderr.isatty() else "lines"
