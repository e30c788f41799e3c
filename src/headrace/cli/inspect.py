"""``headrace inspect``: show the schema of a source, and the share of its records that decode."""

from pathlib import Path
from typing import Any, Final

import click
import orjson

from headrace.app.runs import inspect_source
from headrace.cli.commands import complete_files, examples
from headrace.cli.options import RUN_LOG_OPTIONS
from headrace.cli.run_display import print_figures, print_tried, trial_json
from headrace.cli.run_options import INSPECT_OPTIONS, inspect_settings
from headrace.cli.runs import DRY_RECORDS, MODEL_OPTIONS, exit_with, predictor_options
from headrace.core.errors import ConfigError

_SOME_FAIL: Final = 3
"""The exit status if a sampled record does not decode, as that of a run with failed records."""

_EPILOG = (
    examples(
        "headrace inspect s3://bucket/day/",
        "headrace inspect rows.csv --model churn.onnx --columns age,income",
        "headrace inspect rows.csv --save-schema schema.json",
        "headrace transform data/ out/ --model churn.onnx --schema schema.json",
    )
    + "\n\b\nExit status: 0 all sampled records decode; 3 some do not; 1 the source or the model cannot be\n"
    "opened, or they do not fit; 2 wrong usage.\n"
)


@click.command("inspect", epilog=_EPILOG)
@click.argument("source", nargs=-1, required=True, shell_complete=complete_files)
@MODEL_OPTIONS
@INSPECT_OPTIONS
@click.option(
    "--records",
    type=click.IntRange(min=0),
    default=DRY_RECORDS,
    show_default=True,
    help="Number of records to show.",
)
@click.option(
    "--save-schema", metavar="FILE", help="File for the schema, to be edited and given as --schema FILE."
)
@click.option("--json", "json_lines", is_flag=True, help="Print one JSON line.")
@RUN_LOG_OPTIONS
def inspect_command(source: tuple[str, ...], **params: Any) -> None:
    """Show the schema of SOURCE, some records, and the share of records that decode.

    A sample of 1,000 records from several objects is read. With --model, records are decoded into the
    inputs of the model; without it, they are compared with the schema.
    """
    if params["model"] and params["endpoint"]:
        raise click.UsageError("--model and --endpoint cannot be combined")
    exit_with(lambda: _inspect(source[0] if len(source) == 1 else list(source), params), params)


def _inspect(source: str | list[str], params: dict[str, Any]) -> int:
    try:
        settings = inspect_settings(params)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    trial = inspect_source(
        source,
        model=params["model"],
        endpoint=params["endpoint"],
        settings=settings,
        options=predictor_options(params),
        records=params["records"],
    )
    if params["save_schema"] is not None:
        document = orjson.dumps(trial.schema.to_json(), option=orjson.OPT_INDENT_2)
        try:
            Path(params["save_schema"]).write_bytes(document + b"\n")
        except OSError as error:
            raise ConfigError(f"{params['save_schema']}: cannot be written: {error.strerror}") from error
    status = _SOME_FAIL if trial.first_failure is not None else 0
    if params["json_lines"]:
        click.echo(orjson.dumps({"event": "inspect", **trial_json(trial), "exit_code": status}))
        return status
    print_figures({"schema": trial.schema.text(), "sample": trial.text()})
    print_tried(trial.first, "model input" if params["model"] or params["endpoint"] else "value")
    return status
