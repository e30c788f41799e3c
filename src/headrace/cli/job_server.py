"""Options that say which job API is asked, and how a command that asks one runs and ends."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import click

from headrace.cli.ending import INTERRUPTED, say_error
from headrace.core.errors import HeadraceError

Command = TypeVar("Command", bound=Callable[..., Any])

SERVER_DEFAULT = "http://localhost:8090"

_OPTIONS = (
    click.option(
        "--server", envvar="HEADRACE_SERVER", default=SERVER_DEFAULT, show_default=True, show_envvar=True,
        metavar="URL", help="The job API.",
    ),
    click.option(
        "--api-key", envvar="HEADRACE_API_KEY", show_envvar=True, metavar="KEY", default="",
        help="Better in the environment: others see a command's arguments.",
    ),
    click.option("--json", "json_lines", is_flag=True, help="As JSON, a line each."),
)  # fmt: skip


def job_server_options(command: Command) -> Command:
    """``--server``, ``--api-key`` and ``--json``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def ask_jobs(given: dict[str, Any], ask: Callable[[Any], int | None]) -> None:
    """Call `ask` with a client; an error ends the process with its line and status, Ctrl-C with 130."""
    json_lines = given["json_lines"]
    try:
        # Whoever only streams or serves need not have what asking needs.
        from headrace.jobs.client import Client  # noqa: PLC0415

        with Client(given["server"], api_key=given["api_key"]) as client:
            status = ask(client)
        sys.stdout.flush()
    except HeadraceError as error:
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        sys.exit(say_error(error, json_lines=json_lines))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if status:
        sys.exit(status)
