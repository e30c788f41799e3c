"""``headrace models`` and ``headrace sequences``: control the models of a server and their live sequences."""

import re
from typing import Any, Final

import click
import orjson
from rich.text import Text

from headrace.cli.commands import DefaultListGroup, examples, open_server, run_server_command, server_options
from headrace.cli.options import ParsedType
from headrace.cli.responses import plain_table, print_table, printable
from headrace.client.model_server import ModelAddress
from headrace.core.errors import ConfigError
from headrace.protocols.oip_documents import encode_instances, encode_listing

_MODELS_EPILOG = """\b
Examples:
  List all models and their state:
    headrace models
  Reload a model after its files have changed; requests continue meanwhile:
    headrace models load churn
  Show the numbers of requests and calls, and their times:
    headrace models stats churn
  Serve a model with three instances, or with one to four, by load:
    headrace models scale churn 3
    headrace models scale churn 1..4
  Print the names of ready models, for a script:
    headrace models list --json | jq -r '.[] | select(.state == "READY").name'
"""
_SEQUENCES_EPILOG = """\b
Examples:
  List the live sequences of all models, oldest first:
    headrace sequences
  List the sequences of a model, or of one version:
    headrace sequences vad
    headrace sequences vad --version 2
  Cancel a sequence and its waiting requests:
    headrace sequences vad --cancel call-17
  Cancel the sequence of another tenant:
    headrace sequences vad --cancel call-17 --namespace shop
  Print the ids of sequences that are idle for ten seconds, for a script:
    headrace sequences --json | jq -r '.[].sequences[] | select(.idle_s > 10).id'
"""
_SEQUENCE_COLUMNS = ("model", "id", "state", "instance ", "steps ", "requests ", "age ", "idle ")
_INSTANCES: Final = re.compile(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?")
_JSON_OPTION = click.option("--json", "json_lines", is_flag=True, help="Print JSON.")
_NS_PER_MS = 1e6


@click.group("models", cls=DefaultListGroup, epilog=_MODELS_EPILOG)
def models_command() -> None:
    """List, load, unload and scale the models of a running server, and show their statistics.

    If the server uses API keys, the commands need a key with the scope models (HEADRACE_API_KEY).
    To read statistics and numbers of instances, the scope monitor suffices. Only servers with a models
    folder can load and unload models.
    """


@models_command.command("list", epilog=examples("headrace models list --json"))
@_JSON_OPTION
@server_options()
def list_command(**params: Any) -> None:
    """List every version of every model with its state. The default of `headrace models`."""

    async def call() -> None:
        async with open_server(params) as server:
            entries = await server.index()
        if params["json_lines"]:
            fields = ("name", "version", "state", "reason")
            click.echo(orjson.dumps([{f: getattr(e, f) for f in fields} for e in entries]))
            return
        rows = [(e.name, e.version, e.state, e.reason) for e in entries]
        width = 4 if any(e.reason for e in entries) else 3
        _print_models(("model", "version", "state", "reason")[:width], [row[:width] for row in rows])

    run_server_command(call, json_lines=params["json_lines"])


@models_command.command("load", epilog=examples("headrace models load churn"))
@click.argument("name")
@_JSON_OPTION
@server_options(timeout_s=600.0)
def load_command(name: str, **params: Any) -> None:
    """Load or reload model NAME from the server's models folder. Return when the model is ready."""

    async def call() -> None:
        async with open_server(params) as server:
            await server.load(name)
        _print_done("name", name, "loaded", json_lines=params["json_lines"])

    run_server_command(call, json_lines=params["json_lines"])


@models_command.command("unload", epilog=examples("headrace models unload churn"))
@click.argument("name")
@_JSON_OPTION
@server_options(timeout_s=600.0)
def unload_command(name: str, **params: Any) -> None:
    """Unload every version of model NAME after its running requests."""

    async def call() -> None:
        async with open_server(params) as server:
            await server.unload(name)
        _print_done("name", name, "unloaded", json_lines=params["json_lines"])

    run_server_command(call, json_lines=params["json_lines"])


def _parse_instances(text: str) -> tuple[int, int | None]:
    found = _INSTANCES.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.40} is no number of instances: write 3, or 1..4 for one to four by load")
    return int(found[1]), int(found[2]) if found[2] else None


@models_command.command(
    "scale",
    epilog=examples(
        "headrace models scale churn",
        "headrace models scale churn 3",
        "headrace models scale churn 1..4 --version 2",
    ),
)
@click.argument("name")
@click.argument("instances", type=ParsedType("instances", _parse_instances), required=False)
@click.option("--version", default="", help="Version of the model.  [default: the newest ready one]")
@_JSON_OPTION
@server_options(timeout_s=600.0)
def scale_command(name: str, instances: tuple[int, int | None] | None, **params: Any) -> None:
    """Serve model NAME with INSTANCES instances, such as 3, or 1..4 to let the server choose by load.

    No request fails meanwhile. Return when the new instances are ready. Without INSTANCES, show the
    present numbers. The next load of the model restores the numbers of its settings. Uses REST.
    """

    async def call() -> None:
        address = ModelAddress(name, params["version"])
        async with open_server(params) as server:
            status = await (
                server.set_instances(address, *instances) if instances else server.instances(address)
            )
        if params["json_lines"]:
            click.echo(encode_instances(status))
            return
        numbers = (str(n) for n in (status.instances, status.ready, status.draining))
        most = status.instances_max
        limits = "fixed" if most is None else f"{status.instances_min}..{most}"
        columns = ("model", "version", "instances ", "ready ", "draining ", "range")
        _print_table(columns, [(status.name, status.version, *numbers, limits)])

    run_server_command(call, json_lines=params["json_lines"])


@models_command.command("stats", epilog=examples("headrace models stats churn"))
@click.argument("name", default="")
@_JSON_OPTION
@server_options()
def stats_command(name: str, **params: Any) -> None:
    """Show the statistics of model NAME, or of all models.

    They count from the time at which a model was loaded.
    """

    async def call() -> None:
        async with open_server(params) as server:
            statistics = await server.statistics(name)
        figures = [_figures(s) for s in statistics]
        if params["json_lines"]:
            click.echo(orjson.dumps(figures))
            return
        columns = (
            "model",
            "version",
            "requests ",
            "failed ",
            "rows ",
            "calls ",
            "rows/call ",
            "queue ms ",
            "model ms ",
        )
        _print_models(columns, [tuple(map(_format_figure, f.values())) for f in figures])

    run_server_command(call, json_lines=params["json_lines"])


def _figures(s: Any) -> dict[str, Any]:
    """Return the statistics of a model: queue time is per request, model time per call."""
    return {
        "model": s.name,
        "version": s.version,
        "requests": s.success.count + s.fail.count,
        "failed": s.fail.count,
        "rows": s.rows,
        "calls": s.calls,
        "rows_per_call": s.rows / s.calls if s.calls else None,
        "queue_ms": _mean_ms(s.queue),
        "model_ms": _mean_ms(s.compute_infer),
    }


def _mean_ms(duration: Any) -> float | None:
    return duration.ns / duration.count / _NS_PER_MS if duration.count else None


def _format_figure(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_models(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    if rows:
        _print_table(columns, rows)
    else:
        click.echo("no models", err=True)


def _print_table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    table = plain_table(*columns)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    print_table(table)


def _print_done(member: str, value: str, action: str, *, json_lines: bool) -> None:
    """Print that an action is done. `member` is the JSON member of the model's name or sequence's id."""
    click.echo(orjson.dumps({member: value, action: True}) if json_lines else f"{value} {action}")


@click.command("sequences", epilog=_SEQUENCES_EPILOG)
@click.argument("model", default="")
@click.option("--version", default="", help="Version of MODEL.  [default: the server's choice]")
@click.option("--cancel", "cancel_id", metavar="ID", help="Id of a sequence of MODEL to cancel.")
@click.option(
    "--namespace", help="Namespace of the sequence to cancel.  [default: the tenant of the API key]"
)
@click.option(
    "--limit",
    type=click.IntRange(0, 100_000),
    default=1000,
    show_default=True,
    help="Limit of listed sequences per model.",
)
@_JSON_OPTION
@server_options()
def sequences_command(model: str, **params: Any) -> None:
    """List the live sequences of MODEL, or of all ready models, or cancel a sequence.

    The command uses REST. If the server uses API keys, it needs a key with the scope models
    (HEADRACE_API_KEY). Single-request sequences have no id; they are counted but not listed.
    """

    async def call() -> None:
        if params["cancel_id"] is None:
            _print_listings(await _listings(model, params), json_lines=params["json_lines"])
            return
        if not model:
            raise ConfigError("--cancel needs MODEL")
        async with open_server(params) as server:
            address = ModelAddress(model, params["version"])
            await server.cancel_sequence(address, params["cancel_id"], params["namespace"])
        _print_done("id", params["cancel_id"], "cancelled", json_lines=params["json_lines"])

    run_server_command(call, json_lines=params["json_lines"])


async def _listings(model: str, params: dict[str, Any]) -> list[Any]:
    async with open_server(params) as server:
        if model:
            return [await server.sequences(ModelAddress(model, params["version"]), limit=params["limit"])]
        if params["version"]:
            raise ConfigError("--version needs MODEL")
        ready = [entry for entry in await server.index() if entry.state == "READY"]
        listings = [
            await server.sequences(ModelAddress(e.name, e.version), limit=params["limit"]) for e in ready
        ]
        # Models without a step method have no sequences.
        return [listing for listing in listings if listing.live_max]


def _print_listings(listings: list[Any], *, json_lines: bool) -> None:
    if json_lines:
        click.echo(orjson.dumps([orjson.Fragment(encode_listing(listing)) for listing in listings]))
        return
    found = [(listing, info) for listing in listings for info in listing.sequences]
    rows, columns = [_sequence_cells(*each) for each in found], _SEQUENCE_COLUMNS
    if any(info.namespace for _, info in found):
        columns += ("namespace",)
        rows = [(*row, info.namespace or "-") for row, (_, info) in zip(rows, found, strict=True)]
    if rows:
        _print_table(columns, rows)
    for listing in listings:
        click.echo(_summary(listing), err=True)
    if not listings:
        click.echo("no sequences: no ready model has a step method", err=True)


def _model_label(listing: Any) -> str:
    return f"{listing.model} {listing.version}" if listing.version not in ("", "1") else listing.model


def _sequence_cells(listing: Any, info: Any) -> tuple[str, ...]:
    return (
        _model_label(listing),
        info.id,
        info.stage,
        f"{info.instance}",
        f"{info.steps:,}",
        f"{info.requests:,}",
        _duration_text(info.age_s),
        "-" if info.requests else _duration_text(info.idle_s),
    )


def _duration_text(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _summary(listing: Any) -> str:
    ended = sum(listing.ends.values())
    by_reason = ", ".join(
        f"{count:,} {why.replace('_', ' ')}" for why, count in listing.ends.items() if count
    )
    shown = len(listing.sequences)
    unnamed = f", of which {shown:,} are listed" if shown < listing.live else ""
    why = f" ({by_reason})" if by_reason else ""
    live = f"{listing.live:,} of {listing.live_max:,} live{unnamed}"
    return f"{_model_label(listing)}: {live}; {ended:,} ended{why}"
