"""Options for a model server and for the job API, and the frames of commands that call them."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import click

from headrace.cli.commands import INTERRUPTED, WRONG_USAGE, print_error
from headrace.cli.options import POSITIVE, Command, combined_options
from headrace.core.errors import HeadraceError, ModelNotFoundError


def _api_key_option(**attributes: Any) -> Callable[[Command], Command]:
    return click.option(
        "--api-key",
        envvar="HEADRACE_API_KEY",
        show_envvar=True,
        metavar="KEY",
        help="API key; prefer the environment variable, since arguments are visible to other users.",
        **attributes,
    )


def server_options(*, timeout_s: float = 60.0) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--url``, ``--api-key`` and ``--timeout-s``."""
    return combined_options(
        click.option(
            "--url",
            envvar="HEADRACE_URL",
            default="http://localhost:8080",
            show_default=True,
            show_envvar=True,
            help="URL of the server: http://, https://, grpc:// or grpcs://.",
        ),
        _api_key_option(),
        click.option(
            "--timeout-s",
            type=POSITIVE,
            default=timeout_s,
            show_default=True,
            help="Timeout of a request, or of each item of a stream, in seconds.",
        ),
    )


def open_server(params: dict[str, Any]) -> Any:
    """Return a client of the server that the options name, to be entered."""
    # The client is an optional dependency: the other commands work without it.
    from headrace.app.models import open_model_server  # noqa: PLC0415

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


JOB_SERVER_OPTIONS = combined_options(
    click.option(
        "--server",
        envvar="HEADRACE_SERVER",
        default="http://localhost:8090",
        show_default=True,
        show_envvar=True,
        metavar="URL",
        help="URL of the job API.",
    ),
    _api_key_option(default=""),
    click.option("--json", "json_lines", is_flag=True, help="Print JSON lines."),
)


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
