"""``headrace transform`` in a process of its own, and its output folder."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from integration.command import CommandResult

HERE = Path(__file__).parent
ECHO = str(HERE / "echo_model.py")
ENDS_IN_S = 60.0


def run(
    *args: str | Path,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    file_kib_max: int | None = None,
) -> CommandResult:
    """Run ``headrace transform ARGS``; the kernel refuses to let files grow beyond `file_kib_max`."""
    words = command(*args)
    if file_kib_max is not None:
        words = ["bash", "-c", f'ulimit -f {file_kib_max} && exec "$@"', "bash", *words]
    done = subprocess.run(
        words,
        env={**os.environ, **(environ or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=ENDS_IN_S,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def command(*args: str | Path) -> list[str]:
    """Return the command line of ``headrace transform ARGS``."""
    return [sys.executable, "-m", "headrace", "transform", *map(str, args)]


def outputs(folder: Path) -> dict[str, bytes]:
    """Return the files that readers of the destination see, by name, without the report."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and "_headrace" not in p.parts]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.name != "_report.json"}


def failed(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a ``.failed`` file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def leftovers(folder: Path) -> list[str]:
    """Return files that no ended run may leave: unfinished writes, drafts and checkpoints."""
    drafts = folder / "_headrace" / "drafts"
    files = [p for p in folder.rglob("*") if p.is_file()]
    return [p.name for p in files if p.name.startswith(".") or p.parent == drafts or "checkpoint" in p.name]
