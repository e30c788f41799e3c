"""Print the plan of a dry run."""

from typing import Any, Final, cast

import click
import numpy as np
import orjson

from headrace.app.runs import DryRun
from headrace.cli.reports import print_figures
from headrace.reports.report import one_line
from headrace.runs.probe import ProbedRecord
from headrace.runs.settings import RunSettings

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
