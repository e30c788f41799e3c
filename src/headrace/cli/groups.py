"""Groups of commands that are good for something by themselves."""

import click


class ListsByDefault(click.Group):
    """``headrace models`` is ``headrace models list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click has it, with ``list`` before options and before nothing."""
        options_only = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        return super().parse_args(ctx, ["list", *args] if options_only else args)
