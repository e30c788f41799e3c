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
_LISTENER = re.compile(r"(\w+)\s+(\w+://\S+)")


@dataclass(frozen=True)
class Served:
    """The URLs of a server that is ready."""

    rest: str
    grpc: str


@contextmanager
def serving(*arguments: object, environ: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Run ``headrace serve ARGUMENTS``; at the end send SIGTERM, and require exit status 0."""
    command = [sys.executable, "-m", "headrace", "serve", *map(str, arguments)]
    command += ["--rest-port", "0", "--grpc-port", "0", "--no-metrics"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(environ or {})},
    )
    try:
        urls = _listeners(process)
        yield Served(urls["rest"], urls["grpc"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            _, log = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, log


def _listeners(process: subprocess.Popen[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    log: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        log.append(line)
        if line.strip() == "ready":
            return found
        if match := _LISTENER.fullmatch(line.strip()):
            found[match[1]] = match[2]
    raise AssertionError(f"headrace serve exited before it was ready: {''.join(log)}")
