"""The worker's entry in the registry of the ledger: registration, reports, and the order to drain."""

import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.ledger import HeartbeatReply, JobLedger
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker_registry import WorkerInfo, WorkerReport

_log = logging.getLogger("headrace.jobs")

REGISTER_S: Final = 3600.0
"""Seconds between two registrations of a worker, whose models the ledger keeps much longer."""
_RETRY_S: Final = 1.0


def worker_info(settings: WorkerSettings, models: Sequence[str], version: str) -> WorkerInfo:
    """Return the properties of a new start of a worker in this process."""
    return WorkerInfo(
        name=settings.name,
        start_id=secrets.token_hex(8),
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version,
        queues=settings.queues,
        models=tuple(models),
        slots=settings.concurrency,
        region=settings.region,
        lease_ms=settings.lease_ms,
    )


class Registration:
    """The worker's entry in the registry. One thread at a time calls its methods; any may read `draining`.

    An unavailable ledger stops nothing: the next heartbeat registers the worker.

    Args:
        ledger: The ledger.
        info: The properties of the worker.
        read_report: Returns the figures of the worker. If it raises, the last ones are reported again.
        is_claiming: Returns True while a claim is under way.
        resumed: Called at the end of a drain.
        clock: The clock of repeated registrations.
    """

    def __init__(
        self,
        ledger: JobLedger,
        info: WorkerInfo,
        *,
        read_report: Callable[[], WorkerReport],
        is_claiming: Callable[[], bool],
        resumed: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._info = info
        self._read_report = read_report
        self._is_claiming = is_claiming
        self._resumed = resumed
        self._clock = clock
        self._register_s = clock.now()
        """The time of the next registration."""
        self._report = WorkerReport()
        self._confirmed = False
        """True once the ledger has a report that the worker claims no more jobs."""
        self.draining = False
        """True while the worker may claim no jobs."""

    def register(self) -> None:
        """Register the worker if the time has come."""
        now_s = self._clock.now()
        if now_s < self._register_s:
            return
        try:
            self._ledger.register_worker(self._info, self.report())
        except JobLedgerUnavailableError as error:
            self._register_s = now_s + _RETRY_S
            _log.warning("the worker could not be registered, retrying: %s", error)
            return
        self._register_s = now_s + REGISTER_S

    def report(self) -> WorkerReport:
        """Return the report for the next heartbeat."""
        try:
            self._report = self._read_report()
        except Exception:  # noqa: BLE001 - a heartbeat without new figures still keeps the leases
            _log.exception("the figures of the worker could not be read")
        # A claim that began before the order may still bring jobs: see LedgerLoop.
        return replace(self._report, claims=not self.draining or self._is_claiming())

    def on_reply(self, report: WorkerReport, reply: HeartbeatReply) -> None:
        """Follow the reply to a heartbeat with this report."""
        if not reply.registered:
            self._register_s = self._clock.now()
            return
        self._confirmed = not report.claims
        self.order(draining=reply.draining)

    def order(self, *, draining: bool) -> None:
        """Drain, or end a drain."""
        if draining == self.draining:
            return
        self.draining = draining
        self._confirmed = False
        _log.info("worker drains" if draining else "worker resumes", extra={"worker": self._info.name})
        if not draining:
            self._resumed()

    @property
    def is_to_confirm(self) -> bool:
        """True if the ledger has no report yet that the draining worker claims no more jobs."""
        return self.draining and not self._confirmed

    def end(self) -> None:
        """Record that the worker has stopped. Without it, the worker counts as lost later."""
        try:
            self._ledger.end_worker(self._info.name)
        except JobLedgerUnavailableError as error:
            _log.warning("the end of the worker could not be recorded: %s", error)
