"""``headrace keys``: create API keys of models and jobs."""

import click
import orjson

from headrace.cli.commands import exit_on_error
from headrace.jobs.access import Scope, format_digest, hash_key, new_key
from headrace.jobs.access.keys_file import key_lines

_EPILOG = """\b
Examples:
  Create a key, show it once, and add its entry to the server's file:
    headrace keys new shop-web --tenant shop >> keys.toml
  Create a key for requests to models, for the file of serve --api-keys:
    headrace keys new web --scope infer >> keys.toml
  Create a key for operators of the queues:
    headrace keys new ops --scope operate --scope submit
  Print only the key, for a script:
    headrace keys new shop-web --json | jq -r .key
"""


@click.group("keys", epilog=_EPILOG)
def keys_command() -> None:
    """Create API keys of models and jobs.

    The server's file stores only digests of keys, so that nobody can use the file as a key.
    """


@keys_command.command("new", epilog=_EPILOG)
@click.argument("name")
@click.option("--tenant", default="", help="Tenant whose jobs the key submits and sees.  [default: NAME]")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    default=("submit", "read"),
    show_default=True,
    help="Scope of the key. Repeatable.",
)
@click.option(
    "--json", "json_lines", is_flag=True, help="Print one JSON line: name, key, digest and TOML entry."
)
def new_command(name: str, tenant: str, scopes: tuple[str, ...], json_lines: bool) -> None:
    """Create a key NAME.

    The key goes to standard error; it is shown only once. Its entry for the server's file goes to
    standard output.
    """
    key = new_key()
    digest = hash_key(key)
    with exit_on_error(json_lines=json_lines):
        lines = key_lines(name, digest, tenant=tenant, scopes=[Scope(scope) for scope in scopes])
    if json_lines:
        document = {"name": name, "key": key, "digest": format_digest(digest), "toml": lines}
        click.echo(orjson.dumps(document))
        return
    click.echo(
        f"{click.style(key, bold=True)}\nThis key is not shown again: store it as a secret.",
        err=True,
    )
    click.echo(lines, nl=False)
