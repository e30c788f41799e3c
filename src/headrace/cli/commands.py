"""The base of all commands: groups, help and completion, exit statuses and errors."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

import click
import orjson
from click.shell_completion import CompletionItem
from typing_extensions import override

from headrace.core.errors import HeadraceError
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
        line = {"event": "error", "type": type(error).__name__, "message": text, "exit_code": exit_code}
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
