"""``headrace models``: what a running server has, and what it does; load and unload."""

from typing import Any

import click
import orjson

from headrace.cli.connecting import open_server, run_asking, server_options
from headrace.cli.groups import ListsByDefault

_EPILOG = """\b
Examples:
  What is there, and whether it can be asked:
    headrace models
  Load a model again after its files have changed, without a moment in which it cannot be asked:
    headrace models load churn
  How many requests, how full the batches, how long the waits:
    headrace models stats churn
  For a script:
    headrace models list --json | jq -r '.[] | select(.state == "READY").name'
"""
_JSON_OPTION = click.option("--json", "json_lines", is_flag=True, help="As JSON.")
_NS_PER_MS = 1e6


@click.group("models", cls=ListsByDefault, epilog=_EPILOG, short_help="Models of a running server.")
def models_command() -> None:
    """What a running server has: list, load, unload, statistics.

    Where the server asks for API keys, all but stats needs one with the role admin (HEADRACE_API_KEY). Loading and
    unloading is for servers that were started with a models folder.
    """


@models_command.command("list")
@_JSON_OPTION
@server_options()
def list_command(**given: Any) -> None:
    """Every version of every model, and whether it can be asked: what `headrace models` alone does."""

    async def ask() -> None:
        async with open_server(given) as server:
            entries = await server.index()
        if given["json_lines"]:
            fields = ("name", "version", "state", "reason")
            click.echo(orjson.dumps([{f: getattr(e, f) for f in fields} for e in entries]))
            return
        _say(
            ("model", "version", "state", "reason"), [(e.name, e.version, e.state, e.reason) for e in entries]
        )

    run_asking(ask, json_lines=given["json_lines"])


@models_command.command("load")
@click.argument("name")
@_JSON_OPTION
@server_options(timeout_s=600.0)
def load_command(name: str, **given: Any) -> None:
    """Load model NAME from the server's models folder, or load it again; returns when it can be asked."""

    async def ask() -> None:
        async with open_server(given) as server:
            await server.load(name)
        _say_done(name, "loaded", json_lines=given["json_lines"])

    run_asking(ask, json_lines=given["json_lines"])


@models_command.command("unload")
@click.argument("name")
@_JSON_OPTION
@server_options(timeout_s=600.0)
def unload_command(name: str, **given: Any) -> None:
    """Unload every version of model NAME, once it has answered what it had."""

    async def ask() -> None:
        async with open_server(given) as server:
            await server.unload(name)
        _say_done(name, "unloaded", json_lines=given["json_lines"])

    run_asking(ask, json_lines=given["json_lines"])


@models_command.command("stats")
@click.argument("name", default="")
@_JSON_OPTION
@server_options()
def stats_command(name: str, **given: Any) -> None:
    """Figures since loading, of model NAME or of all."""

    async def ask() -> None:
        async with open_server(given) as server:
            statistics = await server.statistics(name)
        figures = [_figures(s) for s in statistics]
        if given["json_lines"]:
            click.echo(orjson.dumps(figures))
            return
        columns = (
            "model", "version", "requests ", "failed ", "rows ", "calls ", "rows/call ", "queue ms ", "model ms ",
        )  # fmt: skip
        _say(columns, [tuple(map(_shown, f.values())) for f in figures])

    run_asking(ask, json_lines=given["json_lines"])


def _figures(s: Any) -> dict[str, Any]:
    """Means are over requests (queue) and over calls of the model (model)."""
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


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _say(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.text import Text  # noqa: PLC0415 - see cli.infer

    from headrace.cli.answers import plain_table, printable, say_table  # noqa: PLC0415

    if not rows:
        click.echo("there is no model", err=True)
        return
    if columns[-1] == "reason" and not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    table = plain_table(*columns)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    say_table(table)


def _say_done(name: str, what: str, *, json_lines: bool) -> None:
    click.echo(orjson.dumps({"name": name, what: True}) if json_lines else f"{name} {what}")
