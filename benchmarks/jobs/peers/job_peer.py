"""What the peers' scripts share. Each runs as `python SCRIPT work|submit URL MARKS JOBS JOB_S CONCURRENCY`, in a role:

- `work` is one worker, which says `ready` on standard error and goes on until SIGTERM.
- `submit` puts JOBS jobs into the queue as fast as its documentation knows, says `begin` before, and ends.

A job takes JOB_S without using the processor, and then adds one byte to the file MARKS, which is how all of them are
counted: none keeps a result.
"""

import os
import sys
from dataclasses import dataclass

TOGETHER = 100
"""Jobs of one call, where there are such calls."""


@dataclass(frozen=True)
class Told:
    role: str
    url: str
    marks: str
    jobs: int
    job_s: float
    concurrency: int


def told() -> Told:
    role, url, marks, jobs, job_s, concurrency = sys.argv[1:]
    return Told(role, url, marks, int(jobs), float(job_s), int(concurrency))


class Marks:
    """The file that says how many jobs were done: appending is one step, whichever process does it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def done(self) -> None:
        os.write(self._file, b".")


def say(word: str) -> None:
    print(word, file=sys.stderr, flush=True)
