"""Options for the job API, and the frame of commands that call it."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import click

from headrace.cli.reports import INTERRUPTED, WRONG_USAGE, print_error
from headrace.core.errors import HeadraceError, ModelNotFoundError

Command = TypeVar("Command", bound=Callable[..., Any])

SERVER_DEFAULT = "http://localhost:8090"

_OPTIONS = (
    click.option(
        "--server",
        envvar="HEADRACE_SERVER",
        default=SERVER_DEFAULT,
        show_default=True,
        show_envvar=True,
        metavar="URL",
        help="URL of the job API.",
    ),
    click.option(
        "--api-key",
        envvar="HEADRACE_API_KEY",
        show_envvar=True,
        metavar="KEY",
        default="",
        help="API key; prefer the environment variable, since arguments are visible to other users.",
    ),
    click.option("--json", "json_lines", is_flag=True, help="Print JSON lines."),
)


def job_server_options(command: Command) -> Command:
    """Add ``--server``, ``--api-key`` and ``--json`` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def run_job_command(params: dict[str, Any], call: Callable[[Any], int | None]) -> None:
    """Call `call` with a job client and exit with its status.

    An error is printed and exits with status 1, for an unknown model with that of wrong usage.
    Ctrl-C exits with status 130.
    """
    json_lines = params["json_lines"]
    try:
        # The client is an optional dependency: the other commands work without it.
        from headrace.jobs.client import Client  # noqa: PLC0415

        with Client(params["server"], api_key=params["api_key"]) as client:
            status = call(client)
        sys.stdout.flush()
    except HeadraceError as error:
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        status = WRONG_USAGE if isinstance(error, ModelNotFoundError) else 1
        sys.exit(print_error(error, json_lines=json_lines, exit_code=status))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if status:
        sys.exit(status)
