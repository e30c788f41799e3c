"""Run whole commands within the test process, and read their output folders."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from headrace.cli.main import main

# A user's model of two numbers per record; batches are small so that there are several.
DOUBLE = """
from headrace import Model, TensorSpec

class Double(Model):
    max_batch_rows = 4
    inputs = (TensorSpec("x", "FP32", (-1, 2)),)

    def predict(self, x):
        return x[:, 0] * 2
"""


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of standard output with --json: one JSON object each."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def report(self) -> dict[str, Any]:
        """The last line of --json, whose counts must add up."""
        last = self.lines[-1]
        assert last["event"] == "report", last
        assert last["records_in"] == last["rows_out"] + last["rows_failed"]
        return last

    @property
    def error(self) -> str:
        """The single line on standard error, without its prefix."""
        (line,) = self.err.splitlines()
        assert line.startswith("error: "), line
        return line.removeprefix("error: ")


def headrace(*args: str | Path, environ: Mapping[str, str] | None = None) -> CommandResult:
    """Run ``headrace ARGS``. An exception that would be a traceback is raised."""
    logger = logging.getLogger("headrace")
    before = (logger.handlers, logger.level, logger.propagate)
    try:
        ended = CliRunner().invoke(main, [str(a) for a in args], env=environ, catch_exceptions=False)
    finally:
        logger.handlers, logger.level, logger.propagate = before
    return CommandResult(ended.exit_code, ended.stdout, ended.stderr)


def predictions(output: Path, suffix: str = "csv") -> bytes:
    """Return all parts, joined."""
    return b"".join(p.read_bytes() for p in sorted(output.glob(f"part-?????.{suffix}")))


def failures(output: Path) -> list[dict[str, Any]]:
    """Return all lines of the files of failed records."""
    texts = (p.read_text() for p in sorted(output.glob("part-*.failed.jsonl")))
    return [json.loads(line) for text in texts for line in text.splitlines()]


def contents(output: Path) -> dict[str, bytes]:
    """Return the files that readers of the output see, by name."""
    return {p.name: p.read_bytes() for p in sorted(output.glob("part-*"))}


def leftovers(output: Path) -> list[str]:
    """Return files that no ended run may leave: unfinished writes, checkpoints, unrecorded parts."""
    files = [p for p in output.rglob("*") if p.is_file()]
    recorded = {p.stem for p in (output / "_headrace").glob("part-?????.json")}
    return [
        p.name
        for p in files
        if p.name.startswith(".")
        or "checkpoint" in p.name
        or (p.parent == output and p.name.split(".")[0] not in {*recorded, "_report"})
    ]
