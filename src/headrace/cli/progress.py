"""A run while it runs: a bar on a terminal, plain lines elsewhere, JSON lines for machines.

All of it goes to standard error, but for JSON, which is what standard output is for then.
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
from headrace.pipeline.progress import Progress as Counters

Style = Literal["bar", "lines", "json", "none"]

_INTERVAL_S: dict[Style, float] = {"bar": 0.2, "lines": 5.0, "json": 1.0, "none": 3600.0}
_LISTING = "listing the source"
_NAMES_SHOWN = 2


@dataclass(frozen=True, slots=True)
class Look:
    """What is shown at one moment."""

    bytes_read: int
    bytes_total: int
    objects_read: int
    objects_total: int
    records: int
    rows_failed: int
    rows_per_s: float
    instance_busy_share: float
    reading: tuple[str, ...] = ()
    """The objects that are being read, where that is told."""
    records_replayed: int = 0
    records_to_replay: int = 0
    """Given to the model again, for the states of its sequences, before anything new."""


class Display:
    """Looks at a run's counters now and then, on a thread of its own; a context manager."""

    def __init__(
        self,
        style: Style,
        counters: Counters,
        statistics: Callable[[], PredictorStatistics],
        *,
        reading: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._style: Style = style
        self._counters = counters
        self._statistics = statistics
        self._reading = reading
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-display", daemon=True)
        self._console = Console(stderr=True)
        self._began_s = time.monotonic()
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

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S[self._style]):
            self._show()

    def look(self) -> Look:
        """The counters as they are now."""
        counters, now = self._counters, time.monotonic()
        records = counters.records
        rate = (records - counters.records_before) / max(now - self._began_s, 1e-9)
        return Look(
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
        look = self.look()
        if self._style == "json":
            line = {"event": "progress"} | {k: getattr(look, k) for k in Look.__slots__}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        elif self._bar:
            self._bar.update(
                self._bar.task_ids[0],
                total=look.bytes_total or None,
                completed=look.bytes_read,
                done=_done(look, "/", percent=True),
                records=f"{look.records:,}",
                rate=f"{look.rows_per_s:,.0f}",
                busy=f"{look.instance_busy_share:.0%}",
                failed=f" [red]{look.rows_failed:,} failed[/]" if look.rows_failed else "",
                eta=" ETA" if look.bytes_total else "",
                reading=_objects(look),
            )
        elif self._style == "lines":
            self._console.print(
                f"{_done(look, ' of ')}, {look.records:,} records, "
                f"{look.rows_per_s:,.0f} rows/s, {look.rows_failed:,} failed, "
                f"instances busy {look.instance_busy_share:.0%}{_objects(look)}",
                highlight=False,
                soft_wrap=True,  # a line is a line, wherever it is read
            )


def _objects(look: Look) -> str:
    """How many objects are done, and the last part of the name of what is being read."""
    if not look.reading:
        return ""
    names = ", ".join(uri.rsplit("/", 1)[-1] for uri in look.reading[:_NAMES_SHOWN])
    more = ", …" if len(look.reading) > _NAMES_SHOWN else ""
    return f"  {look.objects_read:,}/{look.objects_total:,} {names}{more}"


def _done(look: Look, of: str, *, percent: bool = False) -> str:
    """How much has been read; of how much where that is known, which not every web server tells."""
    if not look.objects_total:
        return _LISTING
    if look.records_replayed < look.records_to_replay:
        return (
            f"replaying {look.records_replayed:,}{of}{look.records_to_replay:,} records for their sequences"
        )
    read, total = decimal(look.bytes_read), look.bytes_total
    if not total:
        return read
    share = f"{look.bytes_read / total:>4.0%} " if percent else ""
    return f"{share}{read}{of}{decimal(total)}"


def choose_style(*, json_lines: bool, quiet: bool) -> Style:
    """JSON when asked for, a bar on a terminal, plain lines elsewhere."""
    if json_lines:
        return "json"
    if quiet:
        return "none"
    return "bar" if sys.stderr.isatty() else "lines"
