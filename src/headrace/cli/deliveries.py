"""``headrace deliveries`` and ``headrace receivers``: show and repeat notifications about jobs."""

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from headrace.cli.commands import JOB_SERVER_OPTIONS, DefaultListGroup, examples, print_each, run_job_command
from headrace.cli.job_display import timestamp
from headrace.cli.responses import plain_table, print_documents, printable
from headrace.reports.report import one_line

_DELIVERIES_EPILOG = """\b
Examples:
  List the notifications that were given up, the latest first:
    headrace deliveries list
  Show the notifications of a job:
    headrace deliveries job 01a2007b-f2f8-7916-a901-e223a26ee99e
  Deliver one again, or all that were given up:
    headrace deliveries redeliver 01a2007c-0b51-7c3e-8d4b-3f1a52b7c9d0
    headrace deliveries list --json | jq -r .id | xargs headrace deliveries redeliver
"""
_RECEIVERS_EPILOG = """\b
Examples:
  List the receivers that are disabled, or whose last delivery failed:
    headrace receivers list
  Resume the deliveries to a receiver:
    headrace receivers enable billing
"""
_LIMIT_OPTION = click.option(
    "--limit", "-n", type=click.IntRange(1, 500), default=100, show_default=True, help="Limit of the list."
)


@click.group("deliveries", cls=DefaultListGroup, epilog=_DELIVERIES_EPILOG)
def deliveries_command() -> None:
    """List deliveries of notifications, and deliver them again. list needs a key with the scope operate."""


@deliveries_command.command("list", epilog=examples("headrace deliveries list --json"))
@_LIMIT_OPTION
@JOB_SERVER_OPTIONS
def list_command(**params: Any) -> None:
    """List the deliveries that were given up, the latest first. The default of `headrace deliveries`."""

    def call(client: Any) -> None:
        deliveries = client.dead_deliveries(limit=params["limit"])
        print_documents(deliveries, params, _delivery_table, none="no dead deliveries")

    run_job_command(params, call)


@deliveries_command.command(
    "job", epilog=examples("headrace deliveries job 01a2007b-f2f8-7916-a901-e223a26ee99e")
)
@click.argument("job_id", metavar="ID")
@JOB_SERVER_OPTIONS
def job_command(job_id: str, **params: Any) -> None:
    """List the deliveries of the job ID, oldest first."""

    def call(client: Any) -> None:
        deliveries = client.deliveries(job_id)
        print_documents(deliveries, params, _delivery_table, none="the job has no notifications")

    run_job_command(params, call)


@deliveries_command.command(
    "redeliver", epilog=examples("headrace deliveries redeliver 01a2007c-0b51-7c3e-8d4b-3f1a52b7c9d0")
)
@click.argument("delivery_ids", metavar="ID...", nargs=-1, required=True)
@JOB_SERVER_OPTIONS
def redeliver_command(delivery_ids: tuple[str, ...], **params: Any) -> None:
    """Deliver notifications again, at once and with all their attempts. Their event ids stay the same."""

    def redeliver(client: Any, delivery_id: str) -> tuple[str, dict[str, Any]]:
        delivery = client.redeliver(delivery_id)
        return delivery["state"], delivery

    run_job_command(
        params, lambda client: print_each(delivery_ids, lambda each: redeliver(client, each), params)
    )


@click.group("receivers", cls=DefaultListGroup, epilog=_RECEIVERS_EPILOG)
def receivers_command() -> None:
    """List failing receivers of notifications, and enable them. Needs a key with the scope operate."""


@receivers_command.command("list", epilog=examples("headrace receivers list --json"))
@_LIMIT_OPTION
@JOB_SERVER_OPTIONS
def list_receivers_command(**params: Any) -> None:
    """List the receivers that are disabled, or whose last delivery failed."""

    def call(client: Any) -> None:
        receivers = client.failing_receivers(limit=params["limit"])
        print_documents(receivers, params, _receiver_table, none="no failing receivers")

    run_job_command(params, call)


@receivers_command.command("enable", epilog=examples("headrace receivers enable billing"))
@click.argument("receivers", metavar="RECEIVER...", nargs=-1, required=True)
@JOB_SERVER_OPTIONS
def enable_command(receivers: tuple[str, ...], **params: Any) -> None:
    """Resume the deliveries to receivers."""
    run_job_command(
        params,
        lambda client: print_each(receivers, lambda each: ("enabled", client.enable_receiver(each)), params),
    )


def _receiver_table(receivers: Sequence[dict[str, Any]]) -> Table:
    table = plain_table("receiver", "kind", "address", "failures ", "since", "state")
    for each in receivers:
        why = each["disabled_why"]
        table.add_row(
            printable(each["receiver"]),
            each["kind"],
            printable(each["address"]),
            f"{each['failures']:,}",
            timestamp(each["failing_since_at_ms"]) if each["failures"] else "-",
            f"disabled: {printable(one_line(why))}" if why else "enabled",
        )
    return table


def _delivery_table(deliveries: Sequence[dict[str, Any]]) -> Table:
    table = plain_table("delivery", "job", "event", "receiver", "state", "attempts ", "last result")
    for each in deliveries:
        table.add_row(
            each["id"],
            each["job_id"],
            each["type"],
            printable(each["receiver"]),
            each["state"],
            f"{each['attempts']:,}",
            printable(one_line(each["why"])) or "-",
        )
    return table
