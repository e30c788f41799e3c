"""Submits every file of a folder as a job, waits for all of them, and prints what kind of file each is.

python examples/jobs/label_folder.py FOLDER [--server URL] [--webhook URL --secret whsec_...]
"""

import argparse
import json
from pathlib import Path

from headrace.jobs import Client
from headrace.jobs.state import JobState


def main() -> int:
    """Print a line a file; the exit status is 1 where a job has no result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", default="http://localhost:8090")
    parser.add_argument("--webhook", help="told of every end")
    parser.add_argument("--secret", help="what it verifies with")
    given = parser.parse_args()
    notify = [{"webhook": given.webhook, "secret": given.secret}] if given.webhook else []
    files = sorted(path for path in given.folder.iterdir() if path.is_file())
    with Client(given.server) as client:
        # All are in the ledger before the first is asked for: this could end here, and another process fetch them.
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
            said = _label(client, job.id) if job.state is JobState.COMPLETED else _why(job)
            print(f"{job.spec.tags['file']:<24} {said}")
    return int(any(job.state is not JobState.COMPLETED for job in ended))


def _label(client: Client, job_id: str) -> str:
    told = json.loads(client.result(job_id))
    return f"{told['label']} ({told['score']:.0%})"


def _why(job) -> str:
    return f"{job.state.value}: {job.failure.message if job.failure else ''}"


if __name__ == "__main__":
    raise SystemExit(main())
