"""``headrace init``: a model to begin with, its settings, and a test that passes."""

import sys
from pathlib import Path

import click

from headrace.cli.ending import say_error
from headrace.core.errors import ConfigError, HeadraceError

_EPILOG = """\b
Examples:
  A model that answers batches of rows:
    headrace init churn
  One that answers text with a stream of words:
    headrace init writer --stream
"""


@click.command("init", epilog=_EPILOG, short_help="Write a model to begin with, and its test.")
@click.argument("name")
@click.option("--stream", "streams", is_flag=True, help="A model that streams its answers.")
def init_command(name: str, streams: bool) -> None:
    """Write a folder NAME with a model, a model.toml and a test. What is there is never written over."""
    from headrace.cli.starter import starter  # noqa: PLC0415 - text that only this command needs

    try:
        start = starter(Path(name).name, streams=streams)
        write_new(Path(name), start.files)
    except HeadraceError as error:
        sys.exit(say_error(error, json_lines=False))
    for file in start.files:
        click.echo(f"wrote {Path(name) / file}", err=True)
    click.echo("Next:", err=True)
    for command in start.commands(name):
        click.echo(f"  {command}")


def write_new(folder: Path, files: dict[str, str]) -> None:
    """Write the files into the folder, which is made; ConfigError, and nothing written, when one of them is there."""
    there = [file for file in files if (folder / file).exists()]
    if there:
        raise ConfigError(
            f"{folder} already has {', '.join(there)}: choose another name, or move it out of the way"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            with (folder / file).open("x", encoding="utf-8") as made:
                made.write(text)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error
