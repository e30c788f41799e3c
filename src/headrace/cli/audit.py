"""``headrace audit``: show the audit log of a job API."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import click
import orjson
from rich.table import Table

from headrace.cli.commands import JOB_SERVER_OPTIONS, examples, run_job_command
from headrace.cli.job_display import timestamp
from headrace.cli.responses import plain_table, print_documents, printable

_LIMIT: Final = 50
_DETAILS_CHARS_MAX: Final = 80


@click.command(
    "audit",
    epilog=examples(
        "headrace audit",
        "headrace audit --by operator --action jobs.delete",
        "headrace audit --json -n 10000 | jq .action",
    ),
)
@click.option("--by", "done_by", default="", metavar="NAME", help="Name of an API key.")
@click.option("--action", default="", metavar="NAME", help="Action, such as queue.change or jobs.cancel.")
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=_LIMIT, show_default=True, help="Limit of entries."
)
@JOB_SERVER_OPTIONS
def audit_command(**params: Any) -> None:
    """List the actions of operators and all changes of many jobs, newest first.

    The key needs the scope operate. Entries are kept for 365 days.
    """

    def call(client: Any) -> None:
        entries = islice(client.audit(done_by=params["done_by"], action=params["action"]), params["limit"])
        print_documents(list(entries), params, _entry_table, none="no entries")

    run_job_command(params, call)


def _entry_table(entries: Sequence[dict[str, Any]]) -> Table:
    table = plain_table("time", "by", "action", "subject", "jobs ", "details")
    for entry in entries:
        table.add_row(
            timestamp(entry["at_ms"]),
            printable(entry["by"]) or "-",
            entry["action"],
            printable(entry["subject"]) or "-",
            "-" if entry["jobs"] is None else f"{entry['jobs']:,}",
            _details(entry["details"]),
        )
    return table


def _details(details: dict[str, Any]) -> str:
    text = printable(orjson.dumps(details).decode()) if details else "-"
    return text if len(text) <= _DETAILS_CHARS_MAX else f"{text[:_DETAILS_CHARS_MAX]}…"
