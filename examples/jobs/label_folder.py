"""Submit every file of a folder as a job, wait for all jobs, and print the kind of each file.

python examples/jobs/label_folder.py FOLDER [--server URL] [--webhook URL --secret whsec_...]
"""

import argparse
import json
from pathlib import Path

from headrace.jobs import Client
from headrace.jobs.state import JobState


def main() -> int:
    """Print one line per file. Return 1 if a job has no result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", default="http://localhost:8090")
    parser.add_argument("--webhook", help="URL that is notified of every job's end")
    parser.add_argument("--secret", help="secret that signs the notifications")
    arguments = parser.parse_args()
    notify = [{"webhook": arguments.webhook, "secret": arguments.secret}] if arguments.webhook else []
    files = sorted(path for path in arguments.folder.iterdir() if path.is_file())
    with Client(arguments.server) as client:
        # The ledger holds all jobs before the first result is fetched. Another process could fetch
        # them.
        jobs = [
            client.submit(
                "file-type",
                path,
                content_type="application/octet-stream",
                accept="application/jsonlines",
                tags={"file": path.name},
                notify=notify,
            )
            for path in files
        ]
        ended = [client.wait(job.id) for job in jobs]
        for job in ended:
            result = _label(client, job.id) if job.state is JobState.COMPLETED else _why(job)
            print(f"{job.spec.tags['file']:<24} {result}")
    return int(any(job.state is not JobState.COMPLETED for job in ended))


def _label(client: Client, job_id: str) -> str:
    outputs = json.loads(client.result(job_id))
    return f"{outputs['label']} ({outputs['score']:.0%})"


def _why(job) -> str:
    return f"{job.state.value}: {job.failure.message if job.failure else ''}"


if __name__ == "__main__":
    raise SystemExit(main())
