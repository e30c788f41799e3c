"""``headrace completion``: print the completion script of a shell."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from headrace.cli.groups import examples

_PROGRAM: Final = "headrace"
_SHELLS: Final = ("bash", "zsh", "fish")


@click.command(
    "completion",
    epilog=examples(
        "headrace completion bash > ~/.local/share/bash-completion/completions/headrace",
        """echo 'eval "$(headrace completion bash)"' >> ~/.bashrc""",
        """echo 'eval "$(headrace completion zsh)"' >> ~/.zshrc""",
        "headrace completion fish > ~/.config/fish/completions/headrace.fish",
    ),
    short_help="Print the completion script of a shell.",
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, options, choices and file names in SHELL.

    The first example needs the package bash-completion, and the third needs compinit. The next shell
    that starts completes.
    """
    found = get_completion_class(shell)
    assert found is not None, "click has this shell"
    command = context.find_root().command
    click.echo(found(command, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE").source())
