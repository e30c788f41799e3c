"""A worker like that of ``headrace work``; its argument is JSON (see `Bench.worker`)."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

from headrace.app.job_components import JobLocations
from headrace.app.job_worker import open_worker
from headrace.cli.logs import configure_server_logs
from headrace.config.jobs_file import read_jobs_file
from headrace.engine.settings import ServeSettings
from headrace.jobs.encryption import create_key_file
from headrace.jobs.worker import WorkerSettings


def exhaust_memory_on_sigusr1() -> None:
    """Let SIGUSR1 allocate memory without an end."""
    held: list[bytearray] = []

    def allocate(*_: object) -> None:
        while True:
            held.append(bytearray(b"\1") * (16 << 20))

    signal.signal(signal.SIGUSR1, allocate)


def main(arguments: dict[str, Any]) -> None:
    """Work until SIGTERM; print "ready" first."""
    configure_server_logs("json", 0)
    exhaust_memory_on_sigusr1()
    key_file = Path(arguments["encryption_key"])
    create_key_file(key_file)
    locations = JobLocations(
        arguments["ledger"], arguments["store"], arguments["dispatcher"], encryption_key=key_file
    )
    file = Path(arguments["config"]) if arguments["config"] else None
    worker = open_worker(
        [arguments["model"]],
        locations,
        settings=WorkerSettings(**{**arguments["settings"], "queues": tuple(arguments["queues"])}),
        serving=ServeSettings(**arguments["serving"]),
        isolation=arguments["isolation"],
        file=read_jobs_file(file, store_uri=locations.store_uri) if file else None,
    )
    worker.run(lambda: print("ready", flush=True))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
