"""Generated input, which is kept, and the scripts of this folder in separate processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

HERE = Path(__file__).resolve().parent
FOLDER = Path("bench-results")
MODEL = FOLDER / "mlp.onnx"
ROW_BYTES = 255

console = Console(width=None if sys.stdout.isatty() else 132)


def environment() -> dict[str, str]:
    """Return this environment, with only this checkout's package and the shared modules on the
    path.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}


def run_script(script: str, *arguments: object) -> dict:
    """Run a script of this folder in a separate process. Return its measurements."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment())
    return json.loads(done.stdout.splitlines()[-1])


def make_input(name: str, rows: int, *options: str) -> Path:
    """Return a file or folder written by `make_data.py`; an existing one is used unchanged."""
    path = FOLDER / name
    if not path.exists():
        console.print(f"[dim]making {path}, {rows:,} rows[/]")
        FOLDER.mkdir(exist_ok=True)
        # The final name marks a complete file, so that an interrupted one is made again.
        unfinished = path.with_name(f"unfinished-{name}")
        run_script("make_data.py", rows, unfinished, "--model", MODEL, *options)
        unfinished.rename(path)
    return path
