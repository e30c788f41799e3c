"""The job commands against a real job API, and the work of a worker."""

from headrace.jobs.client import Client
from integration.command import headrace


def run_command(served, *arguments):
    """Run ``headrace`` with these arguments against the served API."""
    return headrace(*arguments, environ={"HEADRACE_SERVER": served.url})


def work_after_first_event(monkeypatch, served, work):
    """Claim and work on a job when the client of a command has received its first event."""
    events = Client.events

    def events_with_work(self, job_id):
        stream = events(self, job_id)
        yield next(stream)
        work(served.claim())
        yield from stream

    monkeypatch.setattr(Client, "events", events_with_work)
