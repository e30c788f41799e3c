"""``headrace scale``: show the pools of workers and the decisions about their numbers."""

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final

import click
from rich.table import Table
from rich.text import Text

from headrace.cli.commands import JOB_SERVER_OPTIONS, DefaultListGroup, examples, run_job_command
from headrace.cli.job_display import timestamp
from headrace.cli.responses import plain_table, print_documents, printable
from headrace.reports.report import one_line

_EPILOG = """\b
Examples:
  List the pools with the numbers of workers that they are to have:
    headrace scale list
  Show why a pool was scaled:
    headrace scale history gpu
  Print the names of pools without a controller, for a script:
    headrace scale list --json | jq -r 'select(.controlled | not) | .pool'
"""
_LIMIT: Final = 50


@click.group("scale", cls=DefaultListGroup, epilog=_EPILOG)
def scale_command() -> None:
    """Show pools of workers and the decisions about them. The key needs the scope monitor."""


@scale_command.command("list", epilog=examples("headrace scale list", "headrace scale list --json"))
@JOB_SERVER_OPTIONS
def list_command(**params: Any) -> None:
    """List the pools of workers, each with its last decision.

    A pool is listed until it had no controller for 30 days.
    """
    none = "no pools: no controller has scaled workers in the last 30 days"
    run_job_command(params, lambda client: print_documents(client.pools(), params, _pool_table, none=none))


@scale_command.command(
    "history",
    epilog=examples(
        "headrace scale history",
        "headrace scale history gpu -n 10",
        "headrace scale history gpu --json | jq .observed",
    ),
)
@click.argument("pool", required=False)
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=_LIMIT, show_default=True, help="Limit of decisions."
)
@JOB_SERVER_OPTIONS
def history_command(pool: str | None, **params: Any) -> None:
    """List the decisions about POOL, or about all pools, newest first.

    Decisions are kept for 30 days.
    """

    def call(client: Any) -> None:
        found = client.decisions(pool) if pool else _all_decisions(client)
        limited = list(islice(found, params["limit"]))
        print_documents(limited, params, _decision_table, none="no decisions")

    run_job_command(params, call)


def _all_decisions(client: Any) -> Iterator[dict[str, Any]]:
    """Return the decisions about all pools, newest first."""
    logs = [client.decisions(pool["pool"]) for pool in client.pools()]
    return merge(*logs, key=lambda decision: decision["number"], reverse=True)


def _pool_table(pools: Sequence[dict[str, Any]]) -> Table:
    table = plain_table("pool", "wanted ", "controller", "state", "since", "reason")
    for pool in pools:
        decision = pool["decision"]
        table.add_row(
            _text(pool["pool"]),
            "-" if decision is None else f"{decision['wanted']:,}",
            _text(pool["controller"]),
            Text("controlled", "green") if pool["controlled"] else Text("uncontrolled", "yellow"),
            "-" if decision is None else timestamp(decision["at_ms"]),
            Text("-") if decision is None else _text(decision["reason"]),
        )
    return table


def _decision_table(decisions: Sequence[dict[str, Any]]) -> Table:
    table = plain_table("time", "pool", "workers", "reason")
    for decision in decisions:
        table.add_row(
            timestamp(decision["at_ms"]),
            _text(decision["pool"]),
            f"{decision['workers']:,} -> {decision['wanted']:,}",
            _text(decision["reason"]),
        )
    return table


def _text(value: str) -> Text:
    """Return one line of text that is no markup."""
    return Text(printable(one_line(value)) or "-")
