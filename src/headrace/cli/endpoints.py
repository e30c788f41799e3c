"""``headrace endpoints``: show and change the endpoints of jobs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.table import Table

from headrace.cli.commands import (
    JOB_SERVER_OPTIONS,
    DefaultListGroup,
    examples,
    read_settings_file,
    run_job_command,
)
from headrace.cli.responses import plain_table, print_documents, printable

_EPILOG = """\b
Examples:
  List the endpoints that the key may use, or show one:
    headrace endpoints list
    headrace endpoints show churn
  Create an endpoint, or replace its settings, from a file of settings:
    headrace endpoints set churn churn.toml
  Show what changed; delete the endpoint, while its jobs stay:
    headrace endpoints versions churn
    headrace endpoints delete churn
  Copy an endpoint, for a script:
    headrace endpoints show churn --json | jq .settings > churn.json
    headrace endpoints set churn-2 churn.json
"""
_COLUMNS = ("endpoint", "version ", "model", "kind", "queue", "output", "by")


@click.group("endpoints", cls=DefaultListGroup, epilog=_EPILOG)
def endpoints_command() -> None:
    """List and change endpoints of jobs. set and delete need a key with the scope admin."""


@endpoints_command.command("list", epilog=examples("headrace endpoints list --json"))
@JOB_SERVER_OPTIONS
def list_command(**params: Any) -> None:
    """List the endpoints that the key may use. The default of `headrace endpoints`."""
    run_job_command(params, lambda client: _print_endpoints(client.endpoints(), params))


@endpoints_command.command("show", epilog=examples("headrace endpoints show churn --version 2"))
@click.argument("endpoint")
@click.option(
    "--version", type=click.IntRange(min=1), help="Number of a version.  [default: the current one]"
)
@JOB_SERVER_OPTIONS
def show_command(endpoint: str, version: int | None, **params: Any) -> None:
    """Show the settings of ENDPOINT."""

    def call(client: Any) -> None:
        found = client.endpoint(endpoint, version)
        if params["json_lines"]:
            click.echo(orjson.dumps(found))
            return
        rest = {name: value for name, value in found.items() if name != "settings"}
        for name, value in {**rest, **found["settings"]}.items():
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            click.echo(f"{click.style(f'{name:<17}', bold=True)}  {printable(text)}")

    run_job_command(params, call)


@endpoints_command.command("versions", epilog=examples("headrace endpoints versions churn"))
@click.argument("endpoint")
@JOB_SERVER_OPTIONS
def versions_command(endpoint: str, **params: Any) -> None:
    """List the versions of ENDPOINT, newest first."""
    run_job_command(params, lambda client: _print_endpoints(client.endpoint_versions(endpoint), params))


@endpoints_command.command("set", epilog=examples("headrace endpoints set churn churn.toml"))
@click.argument("endpoint")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@JOB_SERVER_OPTIONS
def set_command(endpoint: str, file: Path, **params: Any) -> None:
    """Create ENDPOINT, or replace all its settings, with those of FILE.

    FILE is a JSON object, or TOML: the keys that [endpoints.NAME] of the settings file has.
    """

    def call(client: Any) -> None:
        _print_endpoints([client.set_endpoint(endpoint, **read_settings_file(file, "an endpoint"))], params)

    run_job_command(params, call)


@endpoints_command.command("delete", epilog=examples("headrace endpoints delete churn"))
@click.argument("endpoint")
@JOB_SERVER_OPTIONS
def delete_command(endpoint: str, **params: Any) -> None:
    """Delete ENDPOINT. Its jobs stay."""

    def call(client: Any) -> None:
        client.delete_endpoint(endpoint)
        if params["json_lines"]:
            click.echo(orjson.dumps({"endpoint": endpoint, "deleted": True}))
        else:
            click.echo(f"{endpoint}  deleted")

    run_job_command(params, call)


def _print_endpoints(endpoints: Sequence[dict[str, Any]], params: dict[str, Any]) -> None:
    none = "no endpoints: create one with headrace endpoints set NAME FILE"
    print_documents(endpoints, params, _endpoint_table, none=none)


def _endpoint_table(endpoints: Sequence[dict[str, Any]]) -> Table:
    table = plain_table(*_COLUMNS)
    for endpoint in endpoints:
        settings = endpoint["settings"]
        table.add_row(
            endpoint["name"],
            f"{endpoint['version']}" + (" deleted" if endpoint["deleted"] else ""),
            settings["model"],
            settings["kind"],
            settings["queue"],
            printable(settings["output_uri"]) or "-",
            printable(endpoint["created_by"]) or "-",
        )
    return table
