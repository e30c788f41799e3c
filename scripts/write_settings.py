"""Write docs/reference/: the settings, and the JSON Schemas of model.toml and the jobs file.

Run it after a change of a declared setting or of an option::

    .venv/bin/python scripts/write_settings.py

A test compares the committed files with the output.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from headrace.app.models import PredictorOptions
from headrace.app.runners import DataRegions
from headrace.app.server_options import (
    AutoscalerOptions,
    JobLocations,
    JobsOptions,
    ServerOptions,
    WorkerListenerOptions,
)
from headrace.cli.commands import DefaultCommandGroup
from headrace.cli.main import load_all
from headrace.cli.options import SettingOption, default_text
from headrace.config.jobs_file import JOBS_TABLES
from headrace.config.model_file import MODEL_KEYS
from headrace.core.sequence import SequenceLimits
from headrace.core.settings import DeclaredSetting, declared_settings
from headrace.core.settings_reader import document_schema
from headrace.engine.settings import ServeSettings
from headrace.formats.read_options import ReadOptions
from headrace.jobs.access.endpoints import EndpointSettings
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.maintenance import Retention
from headrace.jobs.notify.notifiers import SmtpSettings
from headrace.jobs.outbound import OutboundPolicy
from headrace.jobs.trigger import Trigger
from headrace.jobs.worker import WorkerSettings
from headrace.runners.engines import RayWorkers
from headrace.runs.document import EXTENSION_SETTINGS, SpecKeys
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import FlowSettings, MappingOptions, StreamSettings, SubsetSettings, TaskSettings
from headrace.scaling.planner.arrivals import LoadOptions
from headrace.scaling.planner.machine import Machine
from headrace.scaling.settings import InstanceScalingSettings, PoolSettings, ScheduledLimits
from headrace.server.jobs.sagemaker import SageMakerSettings
from headrace.server.listener import DrainSettings, RestLimits, TlsFiles

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"


class Group(NamedTuple):
    """The settings classes of one table, and the place of their keys in a file."""

    title: str
    kinds: tuple[type, ...]
    file: str = ""
    table: str = ""
    has_options: bool = True
    """False for settings of files alone that inherit those of another group."""


SPEC = "a spec file, and of the options of a job"
GROUPS = (
    Group("Reading objects", (ReadOptions,), SPEC, "headrace"),
    Group("Records to model inputs", (MappingOptions,), SPEC, "headrace"),
    Group("Batches and read-ahead", (FlowSettings,), SPEC, "headrace"),
    Group("Output of a run", (OutputSettings,), SPEC, "headrace"),
    Group(
        "Failures, subset, tasks and sources of a run",
        (FailurePolicy, SubsetSettings, TaskSettings, StreamSettings),
        SPEC,
        "headrace",
    ),
    Group("Keys of a spec file", (SpecKeys,), SPEC, "headrace"),
    Group("Model or endpoint of a run", (PredictorOptions,)),
    Group("Workers and regions of a run", (RayWorkers, DataRegions)),
    Group("A served model", (ServeSettings,), "`model.toml`", "serve"),
    Group("Sequences", (SequenceLimits,), "`model.toml`", "sequences"),
    Group(
        "Number of instances of a served model", (InstanceScalingSettings,), "`model.toml`", "scaling", False
    ),
    Group("A model server", (ServerOptions, RestLimits, TlsFiles, DrainSettings)),
    Group("A job server", (JobLocations, JobsOptions)),
    Group("A worker", (WorkerSettings, Retention, WorkerListenerOptions)),
    Group("Queues", (QueueSettings,), "the jobs file", "queues.NAME"),
    Group("Endpoints", (EndpointSettings,), "the jobs file", "endpoints.NAME"),
    Group("Triggers", (Trigger,), "the jobs file", "triggers"),
    Group("Mail server", (SmtpSettings,), "the jobs file", "smtp"),
    Group("Permitted addresses", (OutboundPolicy,), "the jobs file", "outbound"),
    Group("SageMaker's API", (SageMakerSettings,), "the jobs file", "sagemaker"),
    Group("Regions", (JOBS_TABLES["regions"],), "the jobs file", "regions"),
    Group("Pools of workers", (PoolSettings,), "the jobs file", "pools.NAME"),
    Group("Schedules of a pool", (ScheduledLimits,), "the jobs file", "pools.NAME.schedules"),
    Group("Other autoscalers", (AutoscalerOptions,)),
    Group("Jobs and machines of a plan", (LoadOptions, Machine)),
)

COLUMNS = ("setting", "type", "unit", "default", "meaning", "option", "key", "variable")
TEXT = """\
# Settings

<!-- Written by scripts/write_settings.py from the declarations in the code, not by hand. -->

A setting is declared once, on a field of a dataclass.
It has the same name as an option of the command line (`--batch-rows-max`), as a key of a file
(`batch_rows_max`), in Python (`FlowSettings.batch_rows_max`) and as an environment variable
(`HEADRACE_BATCH_ROWS_MAX`). An empty cell stands for a form that a setting does not have.

- An option takes precedence over an environment variable, a variable over a file, and a file over
  the default.
- `headrace serve`, `up`, `work` and `scale` also read variables of their own (`HEADRACE_SERVE_HOST`), which
  come first. A variable with several values separates them by spaces.
- Where the runner or the workers of a run exclude an option, the option is refused, and a variable
  is ignored.
- Sizes in bytes can have a unit in options and files: `64MiB`. Units are powers of 1024.
- Editors check and complete files with the JSON Schemas [model.schema.json](model.schema.json)
  (`model.toml`) and [jobs.schema.json](jobs.schema.json) (the jobs file). With Taplo and Even Better
  TOML, write `#:schema PATH/model.schema.json` into the first line.
"""
OPTIONS_TEXT = """\
## Options without a class

| option | commands | meaning | variable |
| --- | --- | --- | --- |
"""


def options(command: click.Command, path: str = "headrace") -> Iterator[tuple[str, SettingOption]]:
    """Yield the options with an environment variable, with the paths of their commands."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            is_default = isinstance(command, DefaultCommandGroup) and name == command.default_command
            yield from options(inner, path if is_default else f"{path} {name}")
        return
    for parameter in command.params:
        if isinstance(parameter, SettingOption):
            yield path.removeprefix("headrace "), parameter


def settings_page() -> str:
    """Return docs/reference/settings.md."""
    parts = [TEXT]
    parts += [_section(group) for group in GROUPS]
    rows: dict[tuple[str, str, str], list[str]] = {}
    for path, option in options(load_all()):
        if option.declared is None:
            rows.setdefault((option.opts[0], option.help or "", option.variable), []).append(path)
    parts.append(
        OPTIONS_TEXT
        + "".join(
            f"| `{name}` | {', '.join(paths)} | {_escaped(text)} | `{variable}` |\n"
            for (name, text, variable), paths in sorted(rows.items())
        )
    )
    return "\n".join(parts)


def _section(group: Group) -> str:
    where = [f"Keys of `[{group.table}]` in {group.file}.", ""] if group.file else []
    lines = [f"## {group.title}", "", *where]
    lines += [f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|"]
    lines += [_row(kind, declared, group) for kind in group.kinds for declared in declared_settings(kind)]
    return "\n".join([*lines, ""])


def _row(kind: type, declared: DeclaredSetting, group: Group) -> str:
    found = {
        path: option
        for path, option in options(load_all())
        if group.has_options and option.declared == declared
    }
    keyed = bool(group.table) and not declared.setting.python_only
    if group.table == "headrace":
        keyed = declared.name in EXTENSION_SETTINGS
    name = declared.field if kind.__name__.startswith("_") else f"{kind.__name__}.{declared.field}"
    default = default_text(declared)
    cells = (
        f"`{name}`",
        declared.expected,
        declared.unit,
        f"`{default}`" if default else "",
        declared.setting.help,
        f"`{declared.option}` ({', '.join(found)})" if found else "",
        f"`{declared.name}`" if keyed else "",
        "".join({f"`{option.variable}`" for option in found.values()}),
    )
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def schema(title: str, keys: Mapping[str, Any]) -> str:
    """Return a JSON Schema as text."""
    return json.dumps(document_schema(title, keys), indent=2) + "\n"


PAGES = {
    "settings.md": settings_page,
    "model.schema.json": lambda: schema("model.toml: one model of headrace and its serving", MODEL_KEYS),
    "jobs.schema.json": lambda: schema("The jobs file of headrace", JOBS_TABLES),
}


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
