"""A worker as ``headrace work`` makes it, with the short times of the tests: its one argument is JSON (see `Bench.worker`)."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any


def shift_clock(shift_s: float) -> None:
    """Have this process think that it is later, as `faketime` would, where that is not installed."""
    time_s, time_ns = time.time, time.time_ns
    time.time = lambda: time_s() + shift_s
    time.time_ns = lambda: time_ns() + int(shift_s * 1e9)


def hog_when_told() -> None:
    """Take all the memory there is when SIGUSR1 comes."""
    held: list[bytearray] = []

    def hog(*_: object) -> None:
        while True:
            held.append(bytearray(b"\1") * (16 << 20))

    signal.signal(signal.SIGUSR1, hog)


def main(given: dict[str, Any]) -> None:
    """Work until SIGTERM; says "ready" on standard output."""
    if given.get("shift_s"):
        shift_clock(given["shift_s"])
    from headrace.app.job_parts import JobsAt
    from headrace.app.working import open_worker
    from headrace.cli.logs import configure_server_logs
    from headrace.config.jobs_file import read_jobs_file
    from headrace.engine.settings import ServeSettings
    from headrace.jobs.worker.settings import WorkerSettings

    configure_server_logs("json", 0)
    hog_when_told()
    at = JobsAt(given["ledger"], given["store"], given["dispatcher"])
    file = Path(given["config"]) if given["config"] else None
    worker = open_worker(
        [given["model"]],
        at,
        settings=WorkerSettings(**{**given["settings"], "queues": tuple(given["queues"])}),
        serving=ServeSettings(**given["serving"]),
        isolation=given["isolation"],
        file=read_jobs_file(file, store_uri=at.store_uri) if file else None,
    )
    worker.run(lambda: print("ready", flush=True))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
