"""The check of submissions against the models that workers have reported.

A job is claimed by the workers of its queue, so the models that they have reported decide. A queue
without any report is accepted with a warning: its workers may not have started yet, as when they
are scaled from zero.
"""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ModelNotFoundError
from headrace.jobs.access import ApiKey
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import REPORTED_MODELS_KEPT_DAYS, JobLedger

CACHED_S: Final = 5.0
"""Seconds for which reports of models are cached. A submission that they do not permit reads them
again.
"""
_LISTED_MAX: Final = 20
_RECENTLY: Final = f"in the last {REPORTED_MODELS_KEPT_DAYS} days"

Reports = Mapping[str, frozenset[str]]
"""The reported models of each queue."""


class KnownModels:
    """The check of submissions against the reported models of a ledger.

    Thread-safe; checks block while the ledger is read. A job for one of the `scaled_queues` gets workers
    when it comes, so it causes no warning that it waits for one.
    """

    def __init__(
        self, ledger: JobLedger, *, scaled_queues: frozenset[str] = frozenset(), clock: Clock | None = None
    ) -> None:
        self._ledger = ledger
        self._scaled_queues = scaled_queues
        self._clock = clock or SystemClock()
        self._cached: tuple[float, Reports] = (float("-inf"), {})

    def check(self, job: NewJob, key: ApiKey | None = None) -> tuple[str, ...]:
        """Return the warnings of a submission.

        Messages name only the models and queues that `key` permits. A key that may submit to every
        queue sees the names of the others only with the scope MONITOR.

        Raises:
            ModelNotFoundError: Workers of the job's queue have reported, but none has the model.
            JobLedgerUnavailableError: The ledger does not respond.
        """
        read_s, reports = self._cached
        if self._clock.now() - read_s <= CACHED_S and job.model in reports.get(job.queue, ()):
            return ()
        reports = self._ledger.reported_models()
        self._cached = (self._clock.now(), reports)
        if job.queue in self._scaled_queues and job.queue not in reports:
            return ()
        return check_model(job, reports if key is None else _visible_reports(reports, key, job.queue))


def check_model(job: NewJob, reports: Reports) -> tuple[str, ...]:
    """Return the warnings of a submission, given the reported models of each queue.

    Raise ModelNotFoundError if workers of its queue have reported, but none has the model.
    """
    models = reports.get(job.queue)
    if models is None:
        return _unserved_queue(job, reports)
    if job.model and job.model not in models:
        raise ModelNotFoundError(job.model, _unknown_model(job, models, reports))
    return ()


def _unserved_queue(job: NewJob, reports: Reports) -> tuple[str, ...]:
    waits = f"no worker has served queue {job.queue} {_RECENTLY}: the job waits for one"
    if not reports:
        return (waits,)
    waits += f"{_similar(job.queue, reports)}; served queues: {listed(reports)}"
    models = frozenset[str]().union(*reports.values())
    if not job.model or job.model in models:
        return (waits,)
    return (
        waits,
        (
            f"no worker of any queue has model {job.model}{_similar(job.model, models)}"
            f"; known models: {listed(_without_versions(models))}"
        ),
    )


def _unknown_model(job: NewJob, models: Collection[str], reports: Reports) -> str:
    """Return the reason for a refusal, with the known models and what to do."""
    name = job.model.partition("@")[0]
    versions = [model for model in models if model.startswith(f"{name}@")]
    known = versions if name in models else _without_versions(models)
    elsewhere = [queue for queue, others in reports.items() if job.model in others]
    advice = (
        f"; submit it to queue {listed(elsewhere)}, where workers have it"
        if elsewhere
        else f"{_similar(job.model, known)}; before the first job of a new model, start a worker with it"
    )
    return (
        f"no worker of queue {job.queue} has reported it {_RECENTLY}{advice}; known models: {listed(known)}"
    )


def _similar(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _without_versions(models: Iterable[str]) -> list[str]:
    return [model for model in models if "@" not in model]


def listed(names: Iterable[str]) -> str:
    """Return the names for a message, sorted, 20 at most."""
    ordered = sorted(names)
    return ", ".join(ordered[:_LISTED_MAX]) + (", …" if len(ordered) > _LISTED_MAX else "")


def _visible_reports(reports: Reports, key: ApiKey, submitted: str) -> Reports:
    """Return the reports of the queues and models that a key may use, and whose names it may see."""
    queues = key.queues
    if queues is None and key.counted_tenant is not None:
        queues = {submitted}
    return {
        queue: frozenset(filter(key.permits_model, models))
        for queue, models in reports.items()
        if queues is None or queue in queues
    }
