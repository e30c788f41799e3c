"""``headrace sequences``: the sequences that live on a running server, and how they stand; cancel one."""

from typing import Any

import click
import orjson

from headrace.cli.connecting import open_server, run_asking, server_options
from headrace.core.errors import ConfigError

_EPILOG = """\b
Examples:
  What lives, of all models, the oldest first:
    headrace sequences
  Of one model, and of one version of it:
    headrace sequences vad
    headrace sequences vad --version 2
  End one, with all that waits for it:
    headrace sequences vad --cancel call-17
  For a script: those that nobody has asked for ten seconds:
    headrace sequences --json | jq -r '.[].sequences[] | select(.idle_s > 10).id'
"""
_COLUMNS = ("model", "id", "state", "instance ", "steps ", "requests ", "age ", "idle ")


@click.command("sequences", epilog=_EPILOG, short_help="Sequences of a running server.")
@click.argument("model", default="")
@click.option("--version", default="", help="A version of MODEL. Default: the one that the server chooses.")
@click.option("--cancel", "cancelled", metavar="ID", help="End this sequence of MODEL instead.")
@click.option(
    "--limit",
    "most",
    type=click.IntRange(0, 100_000),
    default=1000,
    show_default=True,
    help="How many are listed of each model.",
)
@click.option("--json", "json_lines", is_flag=True, help="As JSON.")
@server_options()
def sequences_command(model: str, **given: Any) -> None:
    """Sequences that live: of MODEL, or of every model that is ready.

    Asked over REST. Where the server asks for API keys it needs one with the role admin (HEADRACE_API_KEY). Requests that are a
    sequence by themselves have no id, and are counted, not listed.
    """

    async def ask() -> None:
        if given["cancelled"] is None:
            _say(await _listings(model, given), json_lines=given["json_lines"])
            return
        if not model:
            raise ConfigError("--cancel needs the MODEL whose sequence it is")
        async with open_server(given) as server:
            await server.cancel_sequence(_address(model, given["version"]), given["cancelled"])
        _say_done(given["cancelled"], json_lines=given["json_lines"])

    run_asking(ask, json_lines=given["json_lines"])


def _address(model: str, version: str) -> Any:
    from headrace.client.server import ModelAddress  # noqa: PLC0415 - see cli.infer

    return ModelAddress(model, version)


async def _listings(model: str, given: dict[str, Any]) -> list[Any]:
    async with open_server(given) as server:
        if model:
            return [await server.sequences(_address(model, given["version"]), most=given["most"])]
        if given["version"]:
            raise ConfigError("--version needs the MODEL whose version it is")
        ready = [entry for entry in await server.index() if entry.state == "READY"]
        every = [await server.sequences(_address(e.name, e.version), most=given["most"]) for e in ready]
        # What has no step can have none.
        return [listing for listing in every if listing.live_max]


def _say(listings: list[Any], *, json_lines: bool) -> None:
    if json_lines:
        from headrace.protocols.oip_sequences import encode_listing  # noqa: PLC0415 - see cli.infer

        click.echo(orjson.dumps([orjson.Fragment(encode_listing(listing)) for listing in listings]))
        return
    rows = [(_called(listing), info) for listing in listings for info in listing.sequences]
    if rows:
        _say_table(rows)
    for listing in listings:
        click.echo(_summary(listing), err=True)
    if not listings:
        click.echo("no model has a step: none keeps anything between requests", err=True)


def _called(listing: Any) -> str:
    return f"{listing.model} {listing.version}" if listing.version not in ("", "1") else listing.model


def _say_table(rows: list[tuple[str, Any]]) -> None:
    from rich.text import Text  # noqa: PLC0415 - see cli.infer

    from headrace.cli.answers import plain_table, printable, say_table  # noqa: PLC0415

    table = plain_table(*_COLUMNS)
    for model, info in rows:
        cells = (
            model,
            info.id,
            info.stage,
            f"{info.instance}",
            f"{info.steps:,}",
            f"{info.requests:,}",
            _lasting(info.age_s),
            "-" if info.requests else _lasting(info.idle_s),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    say_table(table)


def _lasting(seconds: float) -> str:
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
    return f"{_called(listing)}: {listing.live:,} of {listing.live_max:,} live{unnamed}; {ended:,} ended{why}"


def _say_done(id: str, *, json_lines: bool) -> None:
    click.echo(orjson.dumps({"id": id, "cancelled": True}) if json_lines else f"{id} cancelled")
