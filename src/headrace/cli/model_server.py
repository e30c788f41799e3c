"""Options for a model server, and the frame of commands that call it."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from headrace.cli.reports import INTERRUPTED, print_error
from headrace.core.errors import HeadraceError

Command = TypeVar("Command", bound=Callable[..., Any])


def server_options(*, timeout_s: float = 60.0) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--url``, ``--api-key`` and ``--timeout-s``."""
    options = (
        click.option(
            "--url",
            envvar="HEADRACE_URL",
            default="http://localhost:8080",
            show_default=True,
            show_envvar=True,
            help="URL of the server: http://, https://, grpc:// or grpcs://.",
        ),
        click.option(
            "--api-key",
            envvar="HEADRACE_API_KEY",
            show_envvar=True,
            metavar="KEY",
            help="API key; prefer the environment variable, since arguments are visible to other users.",
        ),
        click.option(
            "--timeout-s",
            type=click.FloatRange(min=0, min_open=True),
            default=timeout_s,
            show_default=True,
            help="Timeout of a request, or of each item of a stream, in seconds.",
        ),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def open_server(params: dict[str, Any]) -> Any:
    """Return a client of the server that the options name, to be entered."""
    # The client is an optional dependency: the other commands work without it.
    from headrace.app.server_client import open_model_server  # noqa: PLC0415

    return open_model_server(params["url"], api_key=params["api_key"], timeout_s=params["timeout_s"])


def run_server_command(call: Callable[[], Coroutine[Any, Any, None]], *, json_lines: bool) -> None:
    """Run a coroutine function in an event loop.

    An error is printed and exits with its status. Ctrl-C exits with status 130.
    """
    try:
        asyncio.run(call())
        sys.stdout.flush()
    except HeadraceError as error:
        sys.stdout.flush()
        sys.exit(print_error(error, json_lines=json_lines))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
