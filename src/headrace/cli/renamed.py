"""Old names of options. They work for one release, are not in the help, and print a warning."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def old_option_name(old: str, new: str, convert: Callable[[str], str] = str) -> Callable[[Command], Command]:
    """Return a hidden option whose value, converted, becomes the default of the option `new`.

    A value under the new name on the command line takes precedence.
    """
    name = new.removeprefix("--").replace("-", "_")

    def set_default(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is None:
            return
        click.echo(f"warning: {old} is deprecated: use {new}", err=True)
        context.default_map = {**(context.default_map or {}), name: convert(value)}

    # Eager options are processed before the others, which then find their default.
    return click.option(
        old,
        hidden=True,
        is_eager=True,
        expose_value=False,
        callback=set_default,
        help=f"Deprecated name of {new}.",
    )
