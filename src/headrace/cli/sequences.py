"""``headrace sequences``: list the live sequences of a server, and cancel one."""

from typing import Any

import click
import orjson

from headrace.cli.servers import open_server, run_server_command, server_options
from headrace.core.errors import ConfigError

_EPILOG = """\b
Examples:
  List the live sequences of all models, oldest first:
    headrace sequences
  List the sequences of a model, or of one version:
    headrace sequences vad
    headrace sequences vad --version 2
  Cancel a sequence and its waiting requests:
    headrace sequences vad --cancel call-17
  Print the ids of sequences that are idle for ten seconds, for a script:
    headrace sequences --json | jq -r '.[].sequences[] | select(.idle_s > 10).id'
"""
_COLUMNS = ("model", "id", "state", "instance ", "steps ", "requests ", "age ", "idle ")


@click.command("sequences", epilog=_EPILOG, short_help="List and cancel live sequences.")
@click.argument("model", default="")
@click.option("--version", default="", help="Version of MODEL.  [default: the server's choice]")
@click.option("--cancel", "cancel_id", metavar="ID", help="Id of a sequence of MODEL to cancel.")
@click.option(
    "--limit",
    type=click.IntRange(0, 100_000),
    default=1000,
    show_default=True,
    help="Limit of listed sequences per model.",
)
@click.option("--json", "json_lines", is_flag=True, help="Print JSON.")
@server_options()
def sequences_command(model: str, **params: Any) -> None:
    """List the live sequences of MODEL, or of all ready models, or cancel a sequence.

    The command uses REST. If the server uses API keys, it needs a key with the role admin
    (HEADRACE_API_KEY). Single-request sequences have no id; they are counted but not listed.
    """

    async def call() -> None:
        if params["cancel_id"] is None:
            _print_listings(await _listings(model, params), json_lines=params["json_lines"])
            return
        if not model:
            raise ConfigError("--cancel needs MODEL")
        async with open_server(params) as server:
            await server.cancel_sequence(_address(model, params["version"]), params["cancel_id"])
        _print_cancelled(params["cancel_id"], json_lines=params["json_lines"])

    run_server_command(call, json_lines=params["json_lines"])


def _address(model: str, version: str) -> Any:
    from headrace.client.model_server import ModelAddress  # noqa: PLC0415

    return ModelAddress(model, version)


async def _listings(model: str, params: dict[str, Any]) -> list[Any]:
    async with open_server(params) as server:
        if model:
            return [await server.sequences(_address(model, params["version"]), limit=params["limit"])]
        if params["version"]:
            raise ConfigError("--version needs MODEL")
        ready = [entry for entry in await server.index() if entry.state == "READY"]
        listings = [await server.sequences(_address(e.name, e.version), limit=params["limit"]) for e in ready]
        # Models without a step method have no sequences.
        return [listing for listing in listings if listing.live_max]


def _print_listings(listings: list[Any], *, json_lines: bool) -> None:
    if json_lines:
        from headrace.protocols.oip_documents import encode_listing  # noqa: PLC0415

        click.echo(orjson.dumps([orjson.Fragment(encode_listing(listing)) for listing in listings]))
        return
    rows = [(_model_label(listing), info) for listing in listings for info in listing.sequences]
    if rows:
        _print_sequences(rows)
    for listing in listings:
        click.echo(_summary(listing), err=True)
    if not listings:
        click.echo("no sequences: no ready model has a step method", err=True)


def _model_label(listing: Any) -> str:
    return f"{listing.model} {listing.version}" if listing.version not in ("", "1") else listing.model


def _print_sequences(rows: list[tuple[str, Any]]) -> None:
    from rich.text import Text  # noqa: PLC0415

    from headrace.cli.responses import plain_table, print_table, printable  # noqa: PLC0415

    table = plain_table(*_COLUMNS)
    for model, info in rows:
        cells = (
            model,
            info.id,
            info.stage,
            f"{info.instance}",
            f"{info.steps:,}",
            f"{info.requests:,}",
            _duration_text(info.age_s),
            "-" if info.requests else _duration_text(info.idle_s),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    print_table(table)


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


def _print_cancelled(id: str, *, json_lines: bool) -> None:
    click.echo(orjson.dumps({"id": id, "cancelled": True}) if json_lines else f"{id} cancelled")
