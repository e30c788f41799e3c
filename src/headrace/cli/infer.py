"""``headrace infer``: send a request to a model of a running server."""

from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import click

from headrace.cli.commands import open_server, run_server_command, server_options
from headrace.cli.options import key_values
from headrace.cli.request_builder import build_request, read_input
from headrace.cli.responses import StreamPrinter, check_output, print_response, save_response
from headrace.client.model_server import ModelAddress

_EPILOG = """\b
Examples:
  Send one row to a model with one input:
    headrace infer churn --input '[[42, 3.5, 0]]'
  Send inputs by name, text, values from files, or a whole request from standard input:
    headrace infer churn --input age='[42, 17]' --input spent='[3.5, 0]'
    headrace infer sentiment --text 'what a day' --text 'never again'
    headrace infer churn --input rows.csv --output scores.npz
    headrace infer churn --input x=features.npy --json
    headrace infer churn --input - < request.json
  Print a stream while it arrives, with a parameter for the model:
    headrace infer writer --text 'Once upon' --stream -P max_tokens=40
  Use another server over gRPC, with the key in HEADRACE_API_KEY:
    headrace infer churn --url grpcs://models.example:443 --input '[[42, 3.5, 0]]'

\b
Exit status: 0 success; 1 request refused or failed, or server unreachable; 2 wrong usage;
130 stopped by Ctrl-C, which cancels the request.
"""
BINARY_VALUES_MIN: Final = 4096
"""Number of tensor values from which requests carry raw bytes by default."""


@click.command("infer", epilog=_EPILOG)
@click.argument("model")
@click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="[NAME=]VALUE",
    help="Input as JSON, a file (.json, .npy, .npz, .csv), or - for standard input. Repeatable.",
)
@click.option("--text", "texts", multiple=True, help="Row of the model's text input. Repeatable.")
@click.option(
    "--version",
    "model_version",
    default="",
    help="Version of the model.  [default: the newest ready version]",
)
@click.option(
    "--parameter",
    "-P",
    "parameters",
    multiple=True,
    metavar="KEY=VALUE",
    help="Request parameter for the model. Repeatable.",
)
@click.option(
    "--stream", "streamed", is_flag=True, help="Print the items of a streamed response while they arrive."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File for the outputs: .npz, .npy or .json.",
)
@click.option(
    "--json",
    "json_lines",
    is_flag=True,
    help="Print the whole response as JSON; for a stream, one line per item.",
)
@click.option(
    "--binary/--no-binary",
    default=None,
    help="Send tensors as raw bytes.  [default: for large tensors]",
)
@server_options()
def infer_command(model: str, **params: Any) -> None:
    """Send a request to MODEL of a running server and print the response.

    Inputs are converted to the shapes and datatypes that the model declares: the outer brackets of a
    single row may be omitted. Values that do not fit are refused before the request is sent.
    """
    if params["streamed"] and params["output"]:
        raise click.UsageError("--stream cannot be combined with --output")
    if not params["inputs"] and not params["texts"]:
        raise click.UsageError("give --input or --text")
    run_server_command(lambda: _infer(model, params), json_lines=params["json_lines"])


async def _infer(model: str, params: dict[str, Any]) -> None:
    output: Path | None = params["output"]
    if output is not None:
        check_output(output)
    values = [read_input(text) for text in params["inputs"]]
    parameters = key_values(params["parameters"], "--parameter")
    address = ModelAddress(model, params["model_version"])
    async with open_server(params) as server:
        request = build_request(values, params["texts"], await server.metadata(address), parameters)
        if params["streamed"]:
            display = StreamPrinter(json_lines=params["json_lines"])
            try:
                async with aclosing(server.stream(address, request)) as responses:
                    async for response in responses:
                        display.print_item(response)
            finally:
                display.end()
            return
        response = await server.infer(address, request, binary=_binary(params["binary"], request))
    if output is not None:
        save_response(response, output)
        click.echo(f"{', '.join(t.name for t in response.outputs)} saved to {output}", err=True)
    else:
        print_response(response, json_lines=params["json_lines"])


def _binary(choice: bool | None, request: Any) -> bool:
    if choice is not None:
        return choice
    return sum(t.data.size for t in request.inputs) >= BINARY_VALUES_MIN
