"""The ``headrace`` command group."""

import click

import headrace
from headrace.cli.completion import completion_command
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
