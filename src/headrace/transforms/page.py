"""A transform's report as one page for people: what became of the records, what failed, how fast, and what was predicted."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from headrace.transforms.markup import (
    Html,
    count,
    counted,
    document,
    duration,
    element,
    facts,
    figure,
    section,
    share,
    size,
    table,
)
from headrace.transforms.observation import (
    EXCERPT_BYTES_MAX,
    FAILURES_MAX,
    Observation,
    ObservedFailure,
)
from headrace.transforms.panels import predictions
from headrace.transforms.plots import readable, throughput
from headrace.transforms.report import TransformReport
from headrace.transforms.settings import TransformSettings

PAGE_NAME: Final = "_report.html"
_FAILURES_OPEN: Final = 5
"""The rest of the failures is there, but folded."""
_BATCHES_MIN: Final = 4
_ALWAYS_SHOWN: Final = (
    "data_type",
    "output.accept",
    "output.join",
    "failures.on_error",
    "flow.batch_rows_max",
)


def report_page(
    report: TransformReport,
    observation: Observation,
    *,
    settings: TransformSettings | None = None,
    error: str = "",
) -> bytes:
    """The page, UTF-8: one file that needs nothing else, and runs nothing.

    Args:
        report: Of the whole transform.
        observation: Of this run of it.
        settings: What it was told; those are shown that are not as they are by default.
        error: What it was stopped by, where it was.
    """
    word, how, why = _status(report, error)
    title = f"{word}: {counted(report.records_in, 'record')}, {count(report.rows_failed)} failed | {report.output}"
    return document(
        title,
        element("header", element("h1", f"Batch transform: {word}", class_=how), *_said(report, why, error)),
        _law(report, whole=not error and report.status != "drained"),
        _throughput(report, observation),
        _failures(report, observation),
        predictions(observation),
        _run(report),
        _settings(settings) if settings is not None else Html(),
    )


def _status(report: TransformReport, error: str) -> tuple[str, str, str]:
    """In a word, as a class, and what follows from it."""
    if error:
        return "stopped by an error", "bad", "What was finished stays; a resumption goes on from there."
    if report.status == "drained":
        return "stopped before its end", "warn", "It was asked to stop. A resumption goes on from there."
    if report.status == "failed":
        withheld = counted(report.objects_withheld, "object has", "objects have")
        return "failed", "bad", f"{withheld} no output, since a record failed and on_error is object."
    if report.objects_broken:
        broken = counted(report.objects_broken, "object or member", "objects or members")
        return "complete, with broken objects", "bad", f"{broken} could not be read to the end."
    if report.rows_failed:
        return "complete, with failed records", "warn", "They are in *.failed, beside the outputs."
    return "complete", "good", "Every record has its prediction."


def _said(report: TransformReport, why: str, error: str) -> Iterator[Html]:
    yield element("p", why)
    if error:
        yield element("pre", error)
    done = f"{count(report.objects_done)} of {counted(report.objects, 'object')} done"
    yield element("p", f"{done}, by {report.model}, in {duration(report.elapsed_s)}.")
    if report.resumed:
        yield element(
            "p", "Resumed: counts are of the whole transform; times and plots of its last run.", class_="soft"
        )


def _law(report: TransformReport, *, whole: bool) -> Html:
    parts = (
        (report.records_in, "records in", "="),
        (report.rows_out, "predicted", "+"),
        (report.rows_failed, "failed", "+"),
        (report.rows_withheld, "withheld", ""),
    )
    shown = [
        element("div", element("b", count(number)), element("span", name))
        + (element("i", sign) if sign else Html())
        for number, name, sign in parts
    ]
    words = "Every record that was read is counted once."
    if not whole:
        words = "Of the tasks that were finished; what was read beyond them is not counted, and will be read again."
    if report.records_in != report.rows_out + report.rows_failed + report.rows_withheld:
        words = "These do not add up. Do not trust this output; please report it."
    if report.rows_withheld:
        words += (
            " Withheld are predictions that were not written, since another record of their object failed."
        )
    return section("Records", element("div", *shown, class_="law"), element("p", words, class_="soft"))


# How fast


def _throughput(report: TransformReport, observation: Observation) -> Html:
    timeline = observation.timeline
    if sum(timeline.batches) < _BATCHES_MIN or len(readable(timeline).records) < 2:
        return section("Throughput", element("p", "Too few batches came to draw how fast they did."))
    words = (
        f"{counted(observation.records, 'record')}, {figure(report.rows_per_s)} a second over the whole run."
    )
    heading = element("p", words + " Drawn: records a second, from the beginning to the last batch.")
    return section("Throughput", heading, throughput(timeline, "throughput"))


# What failed


def _failures(report: TransformReport, observation: Observation) -> Html:
    if not (report.rows_failed or report.objects_broken or observation.failures):
        return section("Failures", element("p", "No record failed."))
    return section("Failures", *_reasons(report), *_objects(report), *_first(observation))


def _reasons(report: TransformReport) -> Iterator[Html]:
    if report.failures:
        whole = sum(report.failures.values())
        rows = ((reason, number, share(number, whole)) for reason, number in report.failures.items())
        yield table("Failures by reason", ("Reason", "Failures", "Share"), rows)


def _objects(report: TransformReport) -> Iterator[Html]:
    if report.failed_objects:
        yield table(
            "Objects with most failures",
            ("Object", "Records", "Failed", "Output"),
            [(o["object"], o["records_in"], o["rows_failed"], _fate(o)) for o in report.failed_objects],
        )
        more = report.objects_with_failures - len(report.failed_objects)
        if more > 0:
            yield element("p", f"{counted(more, 'more object')} with failures.", class_="soft")


def _fate(shown: Mapping[str, Any]) -> str:
    if shown["withheld"]:
        return "withheld"
    return "not read to its end" if shown["broken"] else "written, without them"


def _first(observation: Observation) -> Iterator[Html]:
    found = observation.failures
    if not found:
        yield element("p", "None of them came in this run; the *.failed files list them all.", class_="soft")
        return
    yield element("h3", "First failures")
    more = "" if len(found) < FAILURES_MAX else f" At most {FAILURES_MAX} are listed."
    yield element(
        "p",
        f"As they came; of a record at most {EXCERPT_BYTES_MAX} bytes.{more} All are in the *.failed files.",
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


def _run(report: TransformReport) -> Html:
    calls = report.model_calls
    closed = ", ".join(f"{count(n)} {why}" for why, n in report.batches_closed_by.items())
    names = (("Model", report.model), ("Source", report.source), ("Output", report.output))
    rows = (
        ("Objects", f"{count(report.objects_done)} of {count(report.objects)}"),
        ("Tasks done", count(report.tasks)),
        ("Read", size(report.bytes_read)),
        ("Written", size(report.out_bytes)),
        ("Elapsed", duration(report.elapsed_s)),
        ("Processor time", duration(report.cpu_s)),
        ("Records a second", figure(report.rows_per_s)),
        ("Peak memory", size(round(report.peak_memory_mb * (1 << 20)))),
        ("Model busy", f"{100 * report.instance_busy_share:.1f} %"),
        ("Model without work", duration(report.instance_starved_s)),
        ("Model calls", count(calls)),
        ("Retries", count(report.retries)),
        ("Batches closed by", closed or "none"),
        ("Resumed", "yes" if report.resumed else "no"),
    )
    return section("Run", facts(names, wide=True), facts(rows))


def _settings(settings: TransformSettings) -> Html:
    given, usual = _flat(asdict(settings)), _flat(asdict(TransformSettings()))
    shown = [name for name in given if name in _ALWAYS_SHOWN or given[name] != usual.get(name)]
    return section("Settings", facts(((name, _setting(given[name])) for name in shown), wide=True))


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
