"""Options that say which server is asked, and how a command that asks one runs and ends."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from headrace.cli.ending import INTERRUPTED, say_error
from headrace.core.errors import HeadraceError

Command = TypeVar("Command", bound=Callable[..., Any])


def server_options(*, timeout_s: float = 60.0) -> Callable[[Command], Command]:
    """``--url``, ``--api-key`` and ``--timeout-s``."""
    options = (
        click.option(
            "--url", envvar="HEADRACE_URL", default="http://localhost:8080", show_default=True, show_envvar=True,
            help="The server: http://, https://, grpc:// or grpcs://.",
        ),
        click.option(
            "--api-key", envvar="HEADRACE_API_KEY", show_envvar=True, metavar="KEY",
            help="Better in the environment: others see a command's arguments.",
        ),
        click.option(
            "--timeout-s", type=click.FloatRange(min=0, min_open=True), default=timeout_s, show_default=True,
            help="For each answer; of a stream, for each item.",
        ),
    )  # fmt: skip

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def open_server(given: dict[str, Any]) -> Any:
    """The server that these options mean, to be entered."""
    # Whoever only streams or serves need not have what asking needs.
    from headrace.app.asking import open_model_server  # noqa: PLC0415

    return open_model_server(given["url"], api_key=given["api_key"], timeout_s=given["timeout_s"])


def run_asking(ask: Callable[[], Coroutine[Any, Any, None]], *, json_lines: bool) -> None:
    """Run it in an event loop; an error ends the process with its line and status, Ctrl-C with 130."""
    try:
        asyncio.run(ask())
        sys.stdout.flush()
    except HeadraceError as error:
        sys.stdout.flush()
        sys.exit(say_error(error, json_lines=json_lines))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
