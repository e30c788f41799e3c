"""The base of all commands: groups, help and completion, exit statuses, errors, and calls of a server."""

import asyncio
import sys
import tomllib
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import click
import orjson
from click.shell_completion import CompletionItem
from typing_extensions import override

from headrace.cli.options import POSITIVE, Command, combined_options
from headrace.core.errors import ConfigError, HeadraceError, ModelNotFoundError, PredictError
from headrace.reports.report import one_line

INTERRUPTED = 130
"""The exit status after Ctrl-C, as in shells: 128 plus the number of SIGINT."""
WRONG_USAGE = 2
"""The exit status for wrong usage, as click exits."""
_EXIT_FAILED = 1


class DefaultCommandGroup(click.Group):
    """A group that runs its default command unless the first argument names another command.

    Shells complete the names of its commands and everything that the default command completes.
    """

    default_command = "run"

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing and not args:
            return super().parse_args(ctx, args)  # a shell completes the first argument
        if self.is_for_default(args):
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)

    def is_for_default(self, args: list[str]) -> bool:
        """Return True if the arguments do not begin with the name of a command."""
        return not args or args[0] not in self.commands

    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        default = self.commands[self.default_command]
        found: list[CompletionItem] = []
        with click.Context(default, parent=ctx, info_name=default.name) as context:
            first = next((p for p in default.params if isinstance(p, click.Argument)), None)
            if first is not None and not incomplete.startswith("-"):
                found += first.shell_complete(context, incomplete)
            found += default.shell_complete(context, incomplete)
        found += super().shell_complete(ctx, incomplete)
        return list({item.value: item for item in found}.values())  # both have --help


class DefaultListGroup(DefaultCommandGroup):
    """A group whose default command is ``list``: ``headrace models`` is ``headrace models list``.

    Another word than a command is an error.
    """

    default_command = "list"

    @override
    def is_for_default(self, args: list[str]) -> bool:
        return not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))


def complete_files(_context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete file names, for a parameter that takes a path or a URI."""
    return [CompletionItem(incomplete, type="file")]


def examples(*commands: str) -> str:
    """Return the epilog of a command: a list of example command lines."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands), ""])


def print_error(error: HeadraceError, *, json_lines: bool, exit_code: int = _EXIT_FAILED) -> int:
    """Print an error as one line to standard error and return the exit status.

    With `json_lines`, also print a JSON line to standard output.
    """
    text = one_line(str(error))
    if json_lines:
        line: dict[str, Any] = {
            "event": "error",
            "type": type(error).__name__,
            "message": text,
            "exit_code": exit_code,
        }
        if isinstance(error, PredictError) and error.traceback is not None:
            line["traceback"] = error.traceback.to_json()
        click.echo(orjson.dumps(line))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)
    return exit_code


@contextmanager
def exit_on_error(*, json_lines: bool = False) -> Generator[None]:
    """Print a HeadraceError of the context as one line, and exit with status 1."""
    try:
        yield
    except HeadraceError as error:
        sys.exit(print_error(error, json_lines=json_lines))


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


def print_each(
    names: Iterable[str], action: Callable[[str], tuple[str, Mapping[str, Any]]], params: dict[str, Any]
) -> int:
    """Call `action` with each name. Print the text that it returns, or the document as a JSON line.

    A HeadraceError is printed and does not stop the others. Return 1 if there was one, else 0.
    """
    status = 0
    for name in names:
        try:
            text, document = action(name)
        except HeadraceError as error:
            sys.stdout.flush()
            status = print_error(error, json_lines=params["json_lines"])
            continue
        click.echo(orjson.dumps(document) if params["json_lines"] else f"{name}  {text}")
    return status


def read_settings_file(file: Path, what: str) -> dict[str, Any]:
    """Return the settings of `what` in a file. Raise ConfigError unless it is TOML or a JSON object."""
    try:
        text = file.read_text(encoding="utf-8")
        found: Any = orjson.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError, orjson.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: the settings cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: must be an object with the settings of {what}")
    return cast("dict[str, Any]", found)


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
