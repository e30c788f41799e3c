"""The final report of a run, for people and for programs."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, Protocol

from headrace.core.block import Failure
from headrace.core.model_traceback import ModelTraceback
from headrace.reports.markup import pluralize, summary

RunKind = Literal["stream", "transform"]

REPORT_VERSION: Final = 1
REPORT_NAME: Final = "_report.json"
FAILED_NAMES: Final[Mapping[RunKind, str]] = {"stream": "part-*.failed.jsonl", "transform": "**.failed"}
"""The names of the files of failed records."""
_REASONS_SHOWN: Final = 5
_RENAMED: Final = {
    "objects_read": "objects_done",
    "objects_withheld": "objects_suppressed",
    "rows_withheld": "rows_suppressed",
}

Status = Literal["complete", "failed", "drained", "partial"]


class FirstFailures(Protocol):
    """The first failed record and the first broken object of a run."""

    @property
    def first_failure(self) -> Failure | None:
        """The first failed record, if any."""
        ...

    @property
    def first_broken(self) -> Failure | None:
        """The first object or member that was not read to its end, if any."""
        ...


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a run.

    ``records_in == rows_out + rows_failed + rows_suppressed`` was verified.

    Counts are of the whole run, from its ledger. Other figures are of this process alone (of this
    append, if the run is appended to): `bytes_read`, `elapsed_s`, `rows_per_s`, `cpu_s` and those
    of the model. `peak_memory_mb` and `records_replayed` cover the whole life of the process.

    Attributes:
        kind: "stream": numbered parts in the order of the source. "transform": one output per object.
        status: "complete". "failed": objects have no output because one of their records failed
            (`FailurePolicy.on_error` "object"). "drained": stopped on request, can be resumed.
            "partial": tasks are left for workers in other regions, can be resumed.
        objects_with_failures: Objects with a failed record, or broken (transforms only).
        rows_suppressed: Predictions that were not written, in objects without output.
        parts: The number of parts, of a stream.
        tasks: The number of finished tasks; 0 for a stream without workers.
        failures: Failed records by reason.
        failed_objects: The objects with the most failed records (transforms only).
        bytes_across_regions: Transfers with ``from``, ``to`` and ``bytes``, for known regions.
        tasks_left: Unfinished tasks by region.
        records_replayed: Records that were delivered before and replayed to rebuild the states of
            the model.
        schema: The schema of the records, with one line for each format.
        tracebacks: The first traceback of each unexpected exception that the model raised in this
            process, with the keys of `ModelTraceback`; at most TRACEBACKS_MAX.
        failure_limit: The limits of failed records, for people.
        limit: The limit of records of the run, if it has one.
        sample: The share of records that the run chose, if it did not read all; `sample_seed` is
            its seed.
    """

    kind: RunKind
    status: Status
    source: str
    output: str
    model: str
    objects: int
    objects_done: int
    objects_with_failures: int
    objects_broken: int
    objects_suppressed: int
    records_in: int
    rows_out: int
    rows_failed: int
    rows_suppressed: int
    parts: int
    out_bytes: int
    bytes_read: int
    tasks: int
    elapsed_s: float
    rows_per_s: float
    cpu_s: float
    peak_memory_mb: float
    instance_busy_share: float
    instance_starved_s: float
    model_calls: int
    retries: int
    batches_closed_by: dict[str, int] = field(default_factory=dict[str, int])
    failures: dict[str, int] = field(default_factory=dict[str, int])
    failed_objects: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    bytes_across_regions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    tasks_left: dict[str, int] = field(default_factory=dict[str, int])
    resumed: bool = False
    records_replayed: int = 0
    schema: str = ""
    tracebacks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    failure_limit: str = ""
    limit: int | None = None
    sample: float | None = None
    sample_seed: int = 0

    @property
    def exit_code(self) -> int:
        """The exit status of the command.

        0: every record is predicted. 3: records failed. 1: an object is broken or has no output, or
        the run stopped before its end.
        """
        if self.status != "complete" or self.objects_broken:
            return 1
        return 3 if self.rows_failed else 0

    @property
    def objects_read(self) -> int:
        """Return `objects_done`. Deprecated, removed in the next release."""
        _warn_renamed("objects_read")
        return self.objects_done

    @property
    def objects_withheld(self) -> int:
        """Return `objects_suppressed`. Deprecated, removed in the next release."""
        _warn_renamed("objects_withheld")
        return self.objects_suppressed

    @property
    def rows_withheld(self) -> int:
        """Return `rows_suppressed`. Deprecated, removed in the next release."""
        _warn_renamed("rows_withheld")
        return self.rows_suppressed

    def to_json(self) -> dict[str, Any]:
        """Return the report for ``_report.json`` and ``--json``.

        For one release, renamed keys are there under their old names too.
        """
        data = asdict(self)
        old = {name: data[new] for name, new in _RENAMED.items()}
        return {"v": REPORT_VERSION, **data, **old, "exit_code": self.exit_code}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Report":
        """Return the report from the form of `to_json`."""
        return cls(**{f.name: data[f.name] for f in fields(cls)})

    def figures(self, progress: FirstFailures | None = None) -> dict[str, str]:
        """Return the figures of the run for people, by name, as the command prints them.

        A figure may have several lines. `progress` adds the first failures.
        """
        failure, broken = (progress.first_failure, progress.first_broken) if progress else (None, None)
        replayed = f"{self.records_replayed:,} records, to restore sequence states"
        figures = {
            "predictions": f"{self.output} ({_outputs(self)})",
            "records in": _records(self),
            "subset": subset_text(self.limit, self.sample, self.sample_seed),
            "schema": self.schema,
            "failures": _failures(self),
            "failure limit": self.failure_limit if self.rows_failed else "",
            "first failure": one_line(f"{failure.position}: {failure.why}") if failure else "",
            "raised at": _raised(self),
            "broken objects": _broken(self),
            "first broken": broken_line(broken) if broken else "",
            "no output": f"{self.objects_suppressed:,} objects, since one of their records failed"
            if self.objects_suppressed
            else "",
            "replayed": replayed if self.records_replayed else "",
            "across regions": _across_regions(self),
            "rows/s": f"{self.rows_per_s:,.0f} over {self.elapsed_s:.2f} s",
            "instances busy": f"{self.instance_busy_share:.0%}, {pluralize(self.model_calls, 'call')}",
            "peak memory": f"{self.peak_memory_mb:,.0f} MB",
            "status": _STATUS_TEXTS.get(self.status, self.status),
        }
        return {name: value for name, value in figures.items() if value}

    def _repr_html_(self) -> str:
        """Return the figures as a table, for notebooks."""
        title = "Batch transform" if self.kind == "transform" else "Stream run"
        return summary(title, self.figures().items())


_STATUS_TEXTS: Final = {
    "drained": "stopped: continue with --resume",
    "partial": "tasks are left for workers in other regions: continue there with --resume",
}


def _outputs(report: Report) -> str:
    if report.kind == "stream":
        return pluralize(report.parts, "part")
    done = f"{report.objects_done:,} of " if report.status in _STATUS_TEXTS else ""
    return f"{done}{pluralize(report.objects, 'object')}"


def _records(report: Report) -> str:
    suppressed = f" + {report.rows_suppressed:,} suppressed" if report.rows_suppressed else ""
    return f"{report.records_in:,} = {report.rows_out:,} out + {report.rows_failed:,} failed{suppressed}"


def _broken(report: Report) -> str:
    """Return the number of broken objects; for a transform, also their names and their partial outputs."""
    if not report.objects_broken:
        return ""
    shown = [o for o in report.failed_objects if o["broken"]][:_REASONS_SHOWN]
    lines = [f"{o['object']}: the output ends early, in {o['output']}" for o in shown if not o["suppressed"]]
    more = report.objects_broken - len(shown)
    if lines and more > 0:
        lines.append(f"… and {more:,} more")
    if report.kind == "transform" and report.status == "complete":
        lines.append("mend them, then continue with --resume")
    return "\n".join([f"{report.objects_broken:,}", *lines])


def subset_text(limit: int | None, sample: float | None, seed: int) -> str:
    """Return the part of the source that a run reads, or an empty string for all of it."""
    parts = [f"the first {pluralize(limit, 'record')}"] if limit is not None else []
    if sample is not None:
        parts.append(f"a sample of {100 * sample:.10g}% (seed {seed})")
    return " of ".join(parts)


def _across_regions(report: Report) -> str:
    """Return the bytes transferred between regions and the tasks left in them."""
    lines = [f"{c['bytes']:,} bytes from {c['from']} to {c['to']}" for c in report.bytes_across_regions]
    if report.status == "partial":
        lines += [f"{count:,} task(s) left in {region}" for region, count in report.tasks_left.items()]
    return "\n".join(lines)


def _failures(report: Report) -> str:
    """Return the most frequent failure reasons, one per line."""
    if not report.failures:
        return ""
    where = FAILED_NAMES[report.kind]
    if report.kind == "transform":
        where += f", {report.objects_with_failures:,} object(s)"
    shown = list(report.failures.items())[:_REASONS_SHOWN]
    lines = [f"{report.output}{where}; by reason:"]
    lines += [f"{count:>9,}  {one_line(reason)}" for reason, count in shown]
    if len(report.failures) > len(shown):
        lines.append(f"           … and {len(report.failures) - len(shown)} more reasons, in {REPORT_NAME}")
    return "\n".join(lines)


def _raised(report: Report) -> str:
    """Return the unexpected exceptions of the model, one per line."""
    return "\n".join(_raised_line(ModelTraceback.from_json(each)) for each in report.tracebacks)


def _raised_line(traceback: ModelTraceback) -> str:
    source = f": {traceback.source}" if traceback.source else ""
    return one_line(f"{traceback.file}:{traceback.line} in {traceback.function}, {traceback.kind}{source}")


def broken_line(failure: Failure) -> str:
    """Return one line about a broken object; most reasons already name the object."""
    name = failure.position.member or failure.position.object
    return one_line(failure.why if name in failure.why else f"{name}: {failure.why}")


def one_line(text: str) -> str:
    """Return the text with its line breaks replaced by spaces."""
    return re.sub(r"\s*\n\s*", " ", text)


def _warn_renamed(name: str) -> None:
    message = f"Report.{name} is deprecated: use {_RENAMED[name]}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
