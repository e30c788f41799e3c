"""Render a transform's report as an HTML page: counts, failures, throughput and predictions."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from headrace.core.model_traceback import ModelTraceback
from headrace.reports.markup import (
    Html,
    count,
    document,
    duration,
    element,
    facts,
    figure,
    pluralize,
    section,
    share,
    size,
    table,
    text,
)
from headrace.reports.observation import EXCERPT_BYTES_MAX, FAILURES_MAX, ObservedFailure, RunObservation
from headrace.reports.plots import predictions, readable, throughput
from headrace.reports.report import FAILED_NAMES, Report

PAGE_NAME: Final = "_report.html"
_SUBJECTS: Final = {"transform": "Batch transform", "stream": "Stream"}
_FAILURES_OPEN: Final = 5
"""Further failures are in a collapsed list."""
_BATCHES_MIN: Final = 4
_ALWAYS_SHOWN: Final = (
    "data_type",
    "output.format",
    "output.join",
    "failures.on_error",
    "flow.batch_rows_max",
)


def report_page(
    report: Report,
    observation: RunObservation,
    *,
    settings: Any = None,
    error: str = "",
) -> bytes:
    """Return the page as UTF-8: one self-contained file without scripts.

    Args:
        report: The report of the whole run.
        observation: The observation of this run.
        settings: The dataclass of the settings to list, as far as they differ from the defaults.
        error: The error that stopped the run, if any.
    """
    word, css_class, explanation = _status(report, error)
    records = pluralize(report.records_in, "record")
    title = f"{word}: {records}, {count(report.rows_failed)} failed | {report.output}"
    return document(
        title,
        element(
            "header",
            element("h1", f"{_SUBJECTS[report.kind]}: {word}", class_=css_class),
            *_summary(report, explanation, error),
        ),
        _counts(report, whole=not error and report.status not in ("drained", "partial")),
        _throughput(report, observation),
        _failures(report, observation),
        predictions(observation),
        _run(report),
        _settings(settings) if settings is not None else Html(),
    )


def _status(report: Report, error: str) -> tuple[str, str, str]:
    """Return the status, its CSS class and an explanation."""
    if error:
        return "stopped by an error", "bad", "Finished work stays. Resume the run to continue."
    if report.status == "drained":
        return (
            "stopped before its end",
            "warn",
            "The run was stopped on request. Resume it to continue.",
        )
    if report.status == "partial":
        return (
            "partial",
            "warn",
            "Tasks are left for workers in other regions. Resume the run there to continue.",
        )
    if report.status == "failed":
        suppressed = pluralize(report.objects_suppressed, "object has", "objects have")
        return "failed", "bad", f"{suppressed} no output, because a record failed and on_error is object."
    if report.objects_broken:
        broken = pluralize(report.objects_broken, "object or member", "objects or members")
        return "complete, with broken objects", "bad", f"{broken} could not be read to the end."
    if report.rows_failed:
        return (
            "complete, with failed records",
            "warn",
            f"The failed records are in {FAILED_NAMES[report.kind]}, next to the outputs.",
        )
    return "complete", "good", "Every record has a prediction."


def _summary(report: Report, explanation: str, error: str) -> Iterator[Html]:
    yield element("p", explanation)
    if error:
        yield element("pre", error)
    done = f"{count(report.objects_done)} of {pluralize(report.objects, 'object')} done"
    yield element("p", f"{done}, by {report.model}, in {duration(report.elapsed_s)}.")
    if report.resumed:
        yield element(
            "p", "Resumed: counts cover the whole run, times and plots its last run.", class_="soft"
        )


def _counts(report: Report, *, whole: bool) -> Html:
    parts = (
        (report.records_in, "records in", "="),
        (report.rows_out, "predicted", "+"),
        (report.rows_failed, "failed", "+" if report.kind == "transform" else ""),
        *([(report.rows_suppressed, "suppressed", "")] if report.kind == "transform" else []),
    )
    shown = [
        element("div", element("b", count(number)), element("span", name))
        + (element("i", sign) if sign else Html())
        for number, name, sign in parts
    ]
    words = "Every record that was read is counted once."
    if not whole:
        words = "Counts cover finished tasks. Records of unfinished tasks are read again after a resumption."
    if report.records_in != report.rows_out + report.rows_failed + report.rows_suppressed:
        words = "The counts do not add up. Do not trust this output; please report it."
    if report.rows_suppressed:
        words += " Suppressed predictions were not written, because another record of their object failed."
    return section("Records", element("div", *shown, class_="counts"), element("p", words, class_="soft"))


# How fast


def _throughput(report: Report, observation: RunObservation) -> Html:
    timeline = observation.timeline
    if sum(timeline.batches) < _BATCHES_MIN or len(readable(timeline).records) < 2:
        return section("Throughput", element("p", "Too few batches for a plot."))
    records = pluralize(observation.records, "record")
    words = f"{records}, {figure(report.rows_per_s)} per second over the whole run."
    heading = element("p", words + " The plot shows records per second up to the last batch.")
    return section("Throughput", heading, throughput(timeline, "throughput"))


# What failed


def _failures(report: Report, observation: RunObservation) -> Html:
    if not (report.rows_failed or report.objects_broken or observation.failures or report.tracebacks):
        return section("Failures", element("p", "No record failed."))
    return section(
        "Failures",
        *_reasons(report),
        *_tracebacks(report),
        *_objects(report),
        *_first_failures(observation, FAILED_NAMES[report.kind]),
    )


def _reasons(report: Report) -> Iterator[Html]:
    if report.failures:
        whole = sum(report.failures.values())
        rows = ((reason, number, share(number, whole)) for reason, number in report.failures.items())
        yield table("Failures by reason", ("Reason", "Failures", "Share"), rows)


def _tracebacks(report: Report) -> Iterator[Html]:
    if not report.tracebacks:
        return
    yield element("h3", "Unexpected exceptions of the model")
    yield element("p", "The first traceback of each type and line.", class_="soft")
    for traceback in map(ModelTraceback.from_json, report.tracebacks):
        yield element("pre", Html("\n".join(map(text, traceback.text.splitlines()))))


def _objects(report: Report) -> Iterator[Html]:
    if report.failed_objects:
        yield table(
            "Objects with most failures",
            ("Object", "Records", "Failed", "Output"),
            [
                (o["object"], o["records_in"], o["rows_failed"], _output_state(o))
                for o in report.failed_objects
            ],
        )
        more = report.objects_with_failures - len(report.failed_objects)
        if more > 0:
            yield element("p", f"{pluralize(more, 'more object')} with failures.", class_="soft")


def _output_state(shown: Mapping[str, Any]) -> str:
    if shown["suppressed"]:
        return "suppressed"
    return "not read to the end" if shown["broken"] else "written without them"


def _first_failures(observation: RunObservation, files: str) -> Iterator[Html]:
    found = observation.failures
    if not found:
        yield element("p", f"None of the failures occurred in this run; {files} list all.", class_="soft")
        return
    yield element("h3", "First failures")
    more = "" if len(found) < FAILURES_MAX else f" The first {FAILURES_MAX} are listed."
    yield element(
        "p",
        f"In order of time, with up to {EXCERPT_BYTES_MAX} bytes per record.{more} All are in {files}.",
        class_="soft",
    )
    yield element("ol", *map(_failure, found[:_FAILURES_OPEN]), class_="failures")
    if rest := found[_FAILURES_OPEN:]:
        summary = element("summary", f"{count(len(rest))} more")
        yield element("details", summary, element("ol", *map(_failure, rest), class_="failures"))


def _failure(failure: ObservedFailure) -> Html:
    name = f"{failure.object}!{failure.member}" if failure.member else failure.object
    place = f"record {count(failure.record)}, line {count(failure.line)}, byte {count(failure.byte)}"
    excerpt = failure.raw + (" …" if failure.cut else "")
    return element(
        "li",
        element("p", element("strong", f"{failure.kind}: "), failure.why),
        element("p", f"{name}, {place}", class_="soft"),
        element("pre", excerpt) if failure.raw else Html(),
    )


# The run


def _run(report: Report) -> Html:
    calls = report.model_calls
    closed = ", ".join(f"{count(n)} {explanation}" for explanation, n in report.batches_closed_by.items())
    names = (("Model", report.model), ("Source", report.source), ("Output", report.output))
    rows = (
        ("Objects", f"{count(report.objects_done)} of {count(report.objects)}"),
        ("Parts", count(report.parts)) if report.kind == "stream" else ("Tasks done", count(report.tasks)),
        ("Read", size(report.bytes_read)),
        ("Written", size(report.out_bytes)),
        ("Elapsed", duration(report.elapsed_s)),
        ("Processor time", duration(report.cpu_s)),
        ("Records per second", figure(report.rows_per_s)),
        ("Peak memory", size(round(report.peak_memory_mb * (1 << 20)))),
        ("Model busy", f"{100 * report.instance_busy_share:.1f} %"),
        ("Model idle", duration(report.instance_starved_s)),
        ("Model calls", count(calls)),
        ("Retries", count(report.retries)),
        ("Batches closed by", closed or "none"),
        ("Failure limit", report.failure_limit or "unknown"),
        ("Resumed", "yes" if report.resumed else "no"),
    )
    return section("Run", facts(names, wide=True), facts(rows))


def _settings(settings: Any) -> Html:
    values, defaults = _flat(asdict(settings)), _flat(asdict(type(settings)()))
    values["failures.on_error"] = values.get("failures.on_error") or "record"
    shown = [name for name in values if name in _ALWAYS_SHOWN or values[name] != defaults.get(name)]
    return section("Settings", facts(((name, _setting(values[name])) for name in shown), wide=True))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")  # pyright: ignore[reportUnknownArgumentType] - asdict's
        else:
            found[prefix + name] = value
    return found


def _setting(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, int) and not isinstance(value, bool):
        return count(value)
    return str(value)
