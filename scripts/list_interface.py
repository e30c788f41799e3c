"""List what users can name: commands, options, variables, Python names, settings, spec keys and routes.

Print one line each, sorted, so that two versions can be compared::

    python scripts/list_interface.py > now.txt
    PYTHONPATH=../before/src python scripts/list_interface.py > before.txt
    diff before.txt now.txt
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import click

import headrace
from headrace.cli.commands import DefaultCommandGroup
from headrace.cli.main import load_all
from headrace.cli.options import SettingOption
from headrace.runs.document import EXTENSION_FIELDS
from headrace.server.jobs.app import job_routes
from headrace.server.rest import model_routes


def commands(command: click.Command, path: str) -> Iterator[str]:
    """Yield the commands, options and variables of a command group; hidden options are old names."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            is_default = isinstance(command, DefaultCommandGroup) and name == command.default_command
            yield from commands(inner, path if is_default else f"{path} {name}")
        return
    yield f"command {path}"
    for parameter in command.params:
        for name in (*parameter.opts, *parameter.secondary_opts):
            yield f"option {path} {name}"
        if isinstance(parameter, SettingOption):
            yield f"variable {parameter.variable}"


def python_names() -> Iterator[str]:
    """Yield the public names of the package, and the fields of its settings and reports."""
    for name in headrace.__all__:
        yield f"python {name}"
        value = getattr(headrace, name)
        if is_dataclass(value):
            yield from (f"python {name}.{field.name}" for field in fields(value))


def routes() -> Iterator[str]:
    """Yield the described routes of served models and of jobs."""
    stub: Any = SimpleNamespace(submit_internal=None)
    for kind, table in (("models", model_routes(stub)), ("jobs", job_routes(stub))):
        for route in table:
            if route.operation is not None:
                yield f"route {kind} {route.method} {route.path.replace(':path}', '}')}"


if __name__ == "__main__":
    lines = [*commands(load_all(), "headrace"), *python_names(), *routes()]
    lines += [f"spec headrace.{name}" for name in EXTENSION_FIELDS]
    print("\n".join(sorted(set(lines))))
