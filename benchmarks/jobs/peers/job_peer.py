"""Shared parts of the peers' scripts: `python SCRIPT work|submit URL MARKS JOBS JOB_S CONCURRENCY`.

- `work` is one worker. It writes `ready` to standard error and works until SIGTERM.
- `submit` submits JOBS jobs as fast as the peer's documentation allows. It writes `begin` first.

A job takes JOB_S seconds without CPU, and then appends one byte to the file MARKS. All peers are
counted by that file, because none keeps a result.
"""

import os
import sys
from dataclasses import dataclass

TOGETHER = 100
"""Jobs of one call, for peers with such calls."""


@dataclass(frozen=True)
class Arguments:
    role: str
    url: str
    marks: str
    jobs: int
    job_s: float
    concurrency: int


def read_arguments() -> Arguments:
    role, url, marks, jobs, job_s, concurrency = sys.argv[1:]
    return Arguments(role, url, marks, int(jobs), float(job_s), int(concurrency))


class Marks:
    """The file that counts finished jobs; appends are atomic across processes."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def done(self) -> None:
        os.write(self._file, b".")


def report(word: str) -> None:
    print(word, file=sys.stderr, flush=True)
