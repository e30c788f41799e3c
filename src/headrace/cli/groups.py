"""Command groups with a default command."""

import click


class DefaultListGroup(click.Group):
    """A group whose default command is ``list``: ``headrace models`` is ``headrace models list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert ``list`` if the arguments are empty or begin with an option other than help."""
        options_only = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        return super().parse_args(ctx, ["list", *args] if options_only else args)


def examples(*commands: str) -> str:
    """Return the epilog of a command: a list of example command lines."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands), ""])
