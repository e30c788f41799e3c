"""``headrace infer``: ask a model of a running server."""

from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import click

from headrace.cli.connecting import open_server, run_asking, server_options
from headrace.cli.key_values import key_values

_EPILOG = """\b
Examples:
  One row, or several, for a model with one input:
    headrace infer churn --input '[[42, 3.5, 0]]'
  Inputs by name; text; values from files; a whole request from standard input:
    headrace infer churn --input age='[42, 17]' --input spent='[3.5, 0]'
    headrace infer sentiment --text 'what a day' --text 'never again'
    headrace infer churn --input rows.csv --output scores.npz
    headrace infer churn --input x=features.npy --json
    headrace infer churn --input - < request.json
  A stream, printed as it comes, with a parameter for the model:
    headrace infer writer --text 'Once upon' --stream -P max_tokens=40
  Another server, over gRPC; the key is in HEADRACE_API_KEY:
    headrace infer churn --url grpcs://models.example:443 --input '[[42, 3.5, 0]]'

\b
Exit status: 0 answered; 1 refused, failed or not reached; 2 wrong usage; 130 stopped by Ctrl-C,
which cancels the request.
"""
BINARY_VALUES_MIN: Final = 4096
"""From so many values on tensors travel as raw bytes."""


@click.command("infer", epilog=_EPILOG, short_help="Ask a model of a running server.")
@click.argument("model")
@click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="[NAME=]VALUE",
    help="JSON, a file (.json, .npy, .npz, .csv), or - for standard input; may be repeated.",
)
@click.option("--text", "texts", multiple=True, help="Text for the model's one text input; each is a row.")
@click.option(
    "--version", "model_version", default="", help="Of the model.  [default: the newest that is ready]"
)
@click.option(
    "--parameter",
    "-P",
    "parameters",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter of the request, as the model knows it; may be repeated.",
)
@click.option("--stream", "streamed", is_flag=True, help="Print a stream's items as they come.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Save the outputs: .npz, .npy or .json.",
)
@click.option(
    "--json", "json_lines", is_flag=True, help="The whole answer as JSON; of a stream, a line an item."
)
@click.option(
    "--binary/--no-binary",
    default=None,
    help="Tensors as raw bytes.  [default: when they are large]",
)
@server_options()
def infer_command(model: str, **given: Any) -> None:
    """Ask MODEL of a running server, and print what it answers.

    The server says what its model takes; what is given is made to fit, and refused here when it cannot: one row may be
    written without its brackets, and numbers become the datatype that the model declares.
    """  # fmt: skip
    if given["streamed"] and given["output"]:
        raise click.UsageError("--stream prints; it cannot be saved with --output")
    if not given["inputs"] and not given["texts"]:
        raise click.UsageError("give --input or --text")
    run_asking(lambda: _ask(model, given), json_lines=given["json_lines"])


async def _ask(model: str, given: dict[str, Any]) -> None:
    # What these need is imported only by who asks.
    from headrace.cli.answers import StreamDisplay, check_output, save_response, say_response  # noqa: PLC0415
    from headrace.cli.fitting import fit_request  # noqa: PLC0415
    from headrace.cli.given import read_given  # noqa: PLC0415
    from headrace.client.server import ModelAddress  # noqa: PLC0415

    output: Path | None = given["output"]
    if output is not None:
        check_output(output)
    values = [read_given(text) for text in given["inputs"]]
    parameters = key_values(given["parameters"], "--parameter")
    address = ModelAddress(model, given["model_version"])
    async with open_server(given) as server:
        request = fit_request(values, given["texts"], await server.metadata(address), parameters)
        if given["streamed"]:
            display = StreamDisplay(json_lines=given["json_lines"])
            try:
                async with aclosing(server.stream(address, request)) as responses:
                    async for response in responses:
                        display.item(response)
            finally:
                display.end()
            return
        response = await server.infer(address, request, binary=_binary(given["binary"], request))
    if output is not None:
        save_response(response, output)
        click.echo(f"{', '.join(t.name for t in response.outputs)} saved to {output}", err=True)
    else:
        say_response(response, json_lines=given["json_lines"])


def _binary(wished: bool | None, request: Any) -> bool:
    if wished is not None:
        return wished
    return sum(t.data.size for t in request.inputs) >= BINARY_VALUES_MIN
