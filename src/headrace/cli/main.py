"""The ``headrace`` command group."""

from importlib import import_module
from typing import Final

import click
from click.shell_completion import get_completion_class
from typing_extensions import override

import headrace
from headrace.cli.commands import examples

COMMANDS: Final = {
    "stream": ("stream", "Score objects as a stream."),
    "transform": ("transform", "Score files, with one predictions file each."),
    "inspect": ("inspect", "Show the schema of a source and sample records."),
    "serve": ("serve", "Serve MODEL... over REST, event streams and gRPC."),
    "infer": ("infer", "Send a request to a model."),
    "models": ("models", "List, load, unload and scale a server's models."),
    "sequences": ("models", "List and cancel live sequences."),
    "up": ("serve", "Run the job API and a worker."),
    "work": ("serve", "Run a worker for the jobs of MODEL..."),
    "submit": ("submit", "Submit a job."),
    "jobs": ("jobs", "List and control jobs."),
    "queues": ("jobs", "List and control job queues."),
    "deliveries": ("deliveries", "List notifications, and deliver them again."),
    "receivers": ("deliveries", "List failing receivers of notifications, and enable them."),
    "audit": ("audit", "List the actions of operators."),
    "endpoints": ("endpoints", "List and change endpoints of jobs."),
    "schedules": ("schedules", "List and change schedules of jobs."),
    "workers": ("workers", "List and drain workers of jobs."),
    "scale": ("scale", "Control the numbers of workers, and show why they change."),
    "plan": ("plan", "Compare costs and waiting times of pools by simulation."),
    "init": ("init", "Create a model project with a test."),
    "keys": ("keys", "Create API keys of models and jobs."),
    "completion": ("main", "Print the completion script of a shell."),
}
"""The module and the short help of each command; the help sorts them by name."""

_EPILOG = """\b
Examples:
  headrace stream s3://bucket/day.tar.gz --model churn.onnx --output s3://bucket/scored/
  headrace transform s3://bucket/in/ s3://bucket/out/ --model churn.onnx --join input
  headrace serve churn.onnx words.py:Words
  headrace infer churn --input '[[42, 3.5, 0]]'
  headrace up churn.onnx
  headrace submit rows.csv --model churn --wait
  headrace jobs list --state failed
  headrace queues scale default
  headrace submit --help
"""


class _LazyGroup(click.Group):
    """A group that imports the module of a command when the command runs or completes.

    The other commands are entries of the help.
    """

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, entry, rest = super().resolve_command(ctx, args)
        return name, None if entry is None else load_command(str(entry.name)), rest


def load_command(name: str) -> click.Command:
    """Import and return a command."""
    return getattr(import_module(f"headrace.cli.{COMMANDS[name][0]}"), f"{name}_command")


@click.group(
    cls=_LazyGroup,
    commands=[click.Command(name, short_help=text) for name, (_, text) in COMMANDS.items()],
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(headrace.__version__, prog_name="headrace")
def main() -> None:
    """Run models over streams, batches, jobs and requests.

    Each command has its own help, with examples: headrace COMMAND --help.
    """


def load_all() -> click.Group:
    """Import all commands and return their group, for lists of all options."""
    return click.Group("headrace", commands=[load_command(name) for name in COMMANDS])


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
