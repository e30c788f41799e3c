"""``headrace init``: create a model project with settings and a passing test."""

import sys
from pathlib import Path

import click

from headrace.cli.reports import print_error
from headrace.core.errors import ConfigError, HeadraceError

_EPILOG = """\b
Examples:
  Create a model that predicts batches of rows:
    headrace init churn
  Create a model that streams words in response to text:
    headrace init writer --stream
"""


@click.command("init", epilog=_EPILOG, short_help="Create a model project with a test.")
@click.argument("name")
@click.option("--stream", "streams", is_flag=True, help="Create a model that streams its responses.")
def init_command(name: str, streams: bool) -> None:
    """Create a folder NAME with a model, a model.toml and a test. Existing files are never overwritten."""
    from headrace.cli.starter import starter_project  # noqa: PLC0415

    try:
        project = starter_project(Path(name).name, streams=streams)
        write_new(Path(name), project.files)
    except HeadraceError as error:
        sys.exit(print_error(error, json_lines=False))
    for file in project.files:
        click.echo(f"wrote {Path(name) / file}", err=True)
    click.echo("Next:", err=True)
    for command in project.commands(name):
        click.echo(f"  {command}")


def write_new(folder: Path, files: dict[str, str]) -> None:
    """Write new files into the folder and create it if necessary.

    If one of the files exists, write nothing and raise ConfigError.
    """
    existing = [file for file in files if (folder / file).exists()]
    if existing:
        raise ConfigError(
            f"{folder} already contains {', '.join(existing)}: choose another name or move the files"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            with (folder / file).open("x", encoding="utf-8") as target:
                target.write(text)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error
