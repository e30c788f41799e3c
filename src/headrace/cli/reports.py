"""Print the plan of a dry run, the result of a run, or an error."""

from typing import Any, Final, cast

import click
import numpy as np
import orjson

from headrace.app.runs import DryRun
from headrace.core.errors import HeadraceError
from headrace.reports.report import Report, one_line
from headrace.runs.probe import ProbedRecord
from headrace.runs.settings import RunSettings
from headrace.runs.work import RunProgress

INTERRUPTED = 130
"""The exit status after Ctrl-C, as in shells: 128 plus the number of SIGINT."""
WRONG_USAGE = 2
"""The exit status for wrong usage, as click exits."""
_EXIT_FAILED = 1


def exit_status(report: Report) -> int:
    """Return the command's exit status: the report's exit code, or 130 after an interruption."""
    return INTERRUPTED if report.status == "drained" else report.exit_code


def print_error(error: HeadraceError, *, json_lines: bool, exit_code: int = _EXIT_FAILED) -> int:
    """Print an error as one line to standard error and return the exit status.

    With `json_lines`, also print a JSON line to standard output.
    """
    text = one_line(str(error))
    if json_lines:
        line = {"event": "error", "type": type(error).__name__, "message": text, "exit_code": exit_code}
        click.echo(orjson.dumps(line))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)
    return exit_code


def print_report(
    report: Report,
    progress: RunProgress | None = None,
    *,
    json_lines: bool,
    page: str | None = None,
) -> int:
    """Print a report to standard output and return the exit status.

    The report is one JSON line, or one line for each figure. `progress` adds the first failure,
    since it is often the cause of all failures. `page` is the URI of the HTML report.
    """
    status = exit_status(report)
    if json_lines:
        line = {"event": "report", **report.to_json(), "exit_code": status}
        click.echo(orjson.dumps(line))
        return status
    print_figures(report.figures(progress) | {"page": page or ""})
    return status


def print_figures(figures: dict[str, str]) -> None:
    """Print the figures that are not empty by name. A figure may have several lines."""
    for name, value in figures.items():
        if value:
            first, *more = value.splitlines()
            click.echo(f"{click.style(f'{name:<14}', bold=True)}  {first}")
            for line in more:
                click.echo(f"{'':<14}  {line}")


_OBJECTS_SHOWN: Final = 5
_TEXT_SHOWN: Final = 100
_VALUES_SHOWN: Final = 8


def print_dry_run(found: DryRun, settings: RunSettings, *, json_lines: bool) -> int:
    """Print the plan of a dry run and return the exit status."""
    if json_lines:
        click.echo(orjson.dumps(_dry_json(found, settings)))
        return 0
    plan = found.plan
    sizes = [o.info.size_bytes for o in plan.objects]
    shards = sum(len(task.shards) for task in plan.tasks)
    unknown = "" if None not in sizes else ", and more of unknown size"
    figures = {
        "objects": f"{len(plan.objects):,}, {plan.nbytes:,} bytes{unknown}",
        "work": f"{len(plan.tasks):,} tasks, {shards:,} shards" if plan.tasks else "in order",
        "outputs": "\n".join(
            [f"{o.info.uri} → {o.output or 'parts'}" for o in plan.objects[:_OBJECTS_SHOWN]]
            + (["…"] if len(plan.objects) > _OBJECTS_SHOWN else [])
        ),
        "read": _read_text(settings),
        "written": _output_text(settings),
    }
    print_figures(figures)
    for number, seen in enumerate(found.seen, 1):
        click.echo(click.style(f"\nrecord {number}", bold=True) + f"  {seen.position}")
        click.echo(f"  as read           {_excerpt(seen.record)}")
        if seen.failure is not None:
            click.echo(f"  would fail        {one_line(seen.failure.why)}")
        for name, value in seen.inputs.items():
            click.echo(f"  model input       {name} = {_value(value)}")
    if not found.seen:
        click.echo("\nno records in the first objects")
    return 0


def _read_text(settings: RunSettings) -> str:
    read = settings.read
    text = f"{read.format}, compression {read.compression}, header {read.header}"
    if settings.mapping.input_filter != "$":
        text += f", input filter {settings.mapping.input_filter}"
    return text


def _output_text(settings: RunSettings) -> str:
    output = settings.output
    text = f"{output.format}, join {output.join}, assemble {output.assemble}"
    return text if output.output_filter == "$" else f"{text}, output filter {output.output_filter}"


def _dry_json(found: DryRun, settings: RunSettings) -> dict[str, Any]:
    return {
        "event": "dry-run",
        "objects": [
            {"uri": o.info.uri, "size_bytes": o.info.size_bytes, "output": o.output}
            for o in found.plan.objects
        ],
        "size_bytes": found.plan.nbytes,
        "tasks": len(found.plan.tasks),
        "shards": sum(len(task.shards) for task in found.plan.tasks),
        "settings": settings.identity(),
        "records": [_seen_json(seen) for seen in found.seen],
    }


def _seen_json(seen: ProbedRecord) -> dict[str, Any]:
    return {
        "place": seen.position,
        "record": seen.record.decode(errors="backslashreplace"),
        "inputs": {
            name: {"shape": list(np.shape(value)), "data": _plain(value)}
            for name, value in seen.inputs.items()
        },
        "failure": None if seen.failure is None else seen.failure.why,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    plain = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(plain, list):
        return plain
    return [_plain(v) for v in cast("list[Any]", plain)]


def _excerpt(record: bytes) -> str:
    text = record[: 4 * _TEXT_SHOWN].decode(errors="backslashreplace")
    text = one_line(text)
    return text if len(text) <= _TEXT_SHOWN else text[:_TEXT_SHOWN] + " …"


def _value(value: Any) -> str:
    """Return a row of an input: its first values, type and shape."""
    if isinstance(value, str | bytes):
        return repr(value if len(value) <= _TEXT_SHOWN else value[:_TEXT_SHOWN])
    array = np.asarray(value)
    if array.dtype == object:
        return repr(array.tolist())[:_TEXT_SHOWN]
    if array.ndim == 0:
        return f"{array.item()!r} ({array.dtype})"
    shown = ", ".join(f"{v:g}" for v in array.reshape(-1)[:_VALUES_SHOWN].tolist())
    more = ", …" if array.size > _VALUES_SHOWN else ""
    return f"[{shown}{more}] ({array.dtype}, {' x '.join(map(str, array.shape))})"
