"""The ``headrace`` command group."""

from typing import Final

import click
from click.shell_completion import get_completion_class

import headrace
from headrace.cli.groups import examples
from headrace.cli.infer import infer_command
from headrace.cli.init import init_command
from headrace.cli.jobs import jobs_command
from headrace.cli.keys import keys_command
from headrace.cli.models import models_command
from headrace.cli.queues import queues_command
from headrace.cli.sequences import sequences_command
from headrace.cli.serve import serve_command
from headrace.cli.stream import stream_command
from headrace.cli.submit import submit_command
from headrace.cli.transform import transform_command
from headrace.cli.up import up_command
from headrace.cli.work import work_command

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


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(headrace.__version__, prog_name="headrace")
def main() -> None:
    """Run models over streams, batches, jobs and requests.

    Each command has its own help, with examples: headrace COMMAND --help.
    """


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


main.add_command(stream_command)
main.add_command(transform_command)
main.add_command(serve_command)
main.add_command(infer_command)
main.add_command(models_command)
main.add_command(sequences_command)
main.add_command(up_command)
main.add_command(work_command)
main.add_command(submit_command)
main.add_command(jobs_command)
main.add_command(queues_command)
main.add_command(init_command)
main.add_command(keys_command)
main.add_command(completion_command)
