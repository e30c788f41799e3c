"""``headrace keys``: API keys of the job API."""

import sys

import click
import orjson

from headrace.cli.ending import say_error
from headrace.core.api_key import digest_of, digest_text, new_key
from headrace.core.errors import HeadraceError
from headrace.jobs.access import Scope, key_lines

_EPILOG = """\b
Examples:
  Make a key, show it once, and add its lines to the server's file:
    headrace keys new shop-web --tenant shop >> keys.toml
  One for whoever looks after the queues:
    headrace keys new ops --scope operate --scope submit
  For a script:
    headrace keys new shop-web --json | jq -r .key
"""


@click.group("keys", epilog=_EPILOG, short_help="API keys of the job API.")
def keys_command() -> None:
    """API keys of the job API. A server keeps their digests alone, so that its file opens no door."""


@keys_command.command("new", epilog=_EPILOG)
@click.argument("name")
@click.option("--tenant", default="", help="Whose jobs it submits and sees.  [default: NAME]")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    default=("submit", "read"),
    show_default=True,
    help="What it is good for; may be given several times.",
)
@click.option("--json", "json_lines", is_flag=True, help="As one JSON line: name, key, digest and the lines.")
def new_command(name: str, tenant: str, scopes: tuple[str, ...], json_lines: bool) -> None:
    """Make a key called NAME: the key on standard error, once, and the lines for the server's file on standard output."""
    key = new_key()
    digest = digest_of(key)
    try:
        lines = key_lines(name, digest, tenant=tenant, scopes=[Scope(scope) for scope in scopes])
    except HeadraceError as error:
        sys.exit(say_error(error, json_lines=json_lines))
    if json_lines:
        made = {"name": name, "key": key, "digest": digest_text(digest), "toml": lines}
        click.echo(orjson.dumps(made))
        return
    click.echo(
        f"{click.style(key, bold=True)}\nThis key is not shown again: keep it where secrets are kept.",
        err=True,
    )
    click.echo(lines, nl=False)
