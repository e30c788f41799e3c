"""A real ``headrace serve`` in a process of its own, on free ports."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

WAIT_S = 60.0
_DOOR = re.compile(r"(\w+)\s+(\w+://\S+)")


@dataclass(frozen=True)
class Served:
    """Where a server that is ready can be asked."""

    rest: str
    grpc: str


@contextmanager
def serving(*arguments: object, environ: Mapping[str, str] | None = None) -> Iterator[Served]:
    """``headrace serve ARGUMENTS``, ready; at the end it is told to leave, and must do so in peace."""
    command = [sys.executable, "-m", "headrace", "serve", *map(str, arguments)]
    command += ["--rest-port", "0", "--grpc-port", "0", "--no-metrics"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(environ or {})},
    )
    try:
        doors = _doors(process)
        yield Served(doors["rest"], doors["grpc"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            _, said = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, said


def _doors(process: subprocess.Popen[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    said: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if line.strip() == "ready":
            return found
        if match := _DOOR.fullmatch(line.strip()):
            found[match[1]] = match[2]
    raise AssertionError(f"it ended before it was ready: {''.join(said)}")
