"""Generated input, made once, and the scripts of this folder as processes of their own."""

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
    """Ours, but with this checkout's package and what benchmarks share on the path, and nothing else."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}


def python(script: str, *arguments: object) -> dict:
    """What a script of this folder measured, in a process of its own."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment())
    return json.loads(done.stdout.splitlines()[-1])


def made(name: str, rows: int, *options: str) -> Path:
    """A file or folder by `make_data.py`; one that is there already is taken as it is."""
    path = FOLDER / name
    if not path.exists():
        console.print(f"[dim]making {path}, {rows:,} rows[/]")
        FOLDER.mkdir(exist_ok=True)
        # Under another name until it is whole, so that what was broken off is made again.
        unfinished = path.with_name(f"unfinished-{name}")
        python("make_data.py", rows, unfinished, "--model", MODEL, *options)
        unfinished.rename(path)
    return path
