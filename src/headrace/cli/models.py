"""``headrace models``: list, load and unload the models of a server, and show statistics."""

from typing import Any

import click
import orjson

from headrace.cli.groups import DefaultListGroup, examples
from headrace.cli.servers import open_server, run_server_command, server_options

_EPILOG = """\b
Examples:
  List all models and their state:
    headrace models
  Reload a model after its files have changed; requests continue meanwhile:
    headrace models load churn
  Show the numbers of requests and calls, and their times:
    headrace models stats churn
  Print the names of ready models, for a script:
    headrace models list --json | jq -r '.[] | select(.state == "READY").name'
"""
_JSON_OPTION = click.option("--json", "json_lines", is_flag=True, help="Print JSON.")
_NS_PER_MS = 1e6


@click.group(
    "models", cls=DefaultListGroup, epilog=_EPILOG, short_help="List, load and unload a server's models."
)
def models_command() -> None:
    """List, load and unload the models of a running server, and show their statistics.

    If the server uses API keys, all commands but stats need a key with the role admin
    (HEADRACE_API_KEY). Only servers with a models folder can load and unload models.
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
        _print_table(
            ("model", "version", "state", "reason"), [(e.name, e.version, e.state, e.reason) for e in entries]
        )

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
        _print_done(name, "loaded", json_lines=params["json_lines"])

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
        _print_done(name, "unloaded", json_lines=params["json_lines"])

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
        _print_table(columns, [tuple(map(_format_figure, f.values())) for f in figures])

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


def _print_table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.text import Text  # noqa: PLC0415

    from headrace.cli.responses import plain_table, print_table, printable  # noqa: PLC0415

    if not rows:
        click.echo("no models", err=True)
        return
    if columns[-1] == "reason" and not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    table = plain_table(*columns)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    print_table(table)


def _print_done(name: str, action: str, *, json_lines: bool) -> None:
    click.echo(orjson.dumps({"name": name, action: True}) if json_lines else f"{name} {action}")
