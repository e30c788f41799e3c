"""Jobs as a whole: the API, and beside it a worker and the doors of its models, over one ledger and one store."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import headrace
from headrace.app.job_parts import JobParts, JobsAt, open_parts
from headrace.app.serving import ServedModel, ServerOptions, open_doors
from headrace.app.working import job_repository, join_worker
from headrace.config.jobs_file import JobsFile, anyone, read_jobs_file
from headrace.core.errors import ConfigError
from headrace.core.model import Isolation
from headrace.core.service import Service
from headrace.engine.repository import ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.jobs.access import JobAccess
from headrace.jobs.desk import DeskSettings, JobDesk, RegionOf
from headrace.jobs.maintenance.sweeper import Retention
from headrace.jobs.notifier import EmailTarget
from headrace.jobs.subscription import read_subscriptions
from headrace.jobs.triggering import Triggering
from headrace.jobs.worker.settings import WorkerSettings
from headrace.jobs.worker.worker import Worker
from headrace.server.dataplane import Dataplane
from headrace.server.jobs.app import jobs_app
from headrace.server.jobs.workroom import Workroom
from headrace.server.listen import HttpListener, Listener, TlsFiles, new_event_loop
from headrace.server.security import check_bind
from headrace.server.serving import DrainSettings, Serving
from headrace.storage.regions import Regions

_log = logging.getLogger("headrace.jobs")

API_PORT: Final = 8090


@dataclass(frozen=True, slots=True)
class JobsOptions:
    """What runs beside the ledger, and who may ask.

    Without models there is the API alone, and jobs wait for workers elsewhere. Without keys in the `config` file everybody
    who reaches the port may submit, and name the places of `allow_inputs` and `allow_outputs` alone.
    """

    host: str = "127.0.0.1"
    port: int = API_PORT
    config: Path | None = None
    allow_inputs: tuple[str, ...] = ()
    allow_outputs: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    insecure: bool = False
    events_queue_url: str = ""
    """An SQS queue of object events, which is polled."""
    doors: ServerOptions | None = None
    """Where the models are served too, over the Open Inference Protocol; None: nowhere."""
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True, slots=True)
class OpenedJobs:
    """All of it, put together, its ports bound, and not started."""

    serving: Serving
    doors: Mapping[str, Listener]
    parts: JobParts
    worker: Worker | None

    @property
    def addresses(self) -> dict[str, str]:
        """Where it listens, by door. Ports that were left open are known once it runs."""
        return {name: door.address for name, door in self.doors.items()}

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Run until SIGTERM or SIGINT, drain, and return; blocks. In the main thread."""
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self.serving.run(on_ready))


class _Together:
    """Several services as one: started in order; stopped the other way round, also by two threads, of which one is in a hurry."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services

    def start(self) -> None:
        with ExitStack() as begun:
            for service in self._services:
                # Before: what fails to start may have begun.
                begun.callback(service.stop, drain=False)
                service.start()
            begun.pop_all()

    def stop(self, *, drain: bool = True) -> None:
        with ExitStack() as ending:
            for service in self._services:
                ending.callback(service.stop, drain=drain)


def open_jobs(
    models: Sequence[ServedModel],
    at: JobsAt,
    options: JobsOptions | None = None,
    *,
    serving: ServeSettings | None = None,
    model_options: Mapping[str, Any] | None = None,
    isolation: Isolation = "process",
) -> OpenedJobs:
    """Put the API, and with models a worker, together. Nothing is connected or loaded yet.

    Raises ConfigError for what cannot be: an unknown model, a port that is taken, an open address without a guard.
    """
    used = options or JobsOptions()
    settings = used.worker
    file = _file(used, at)
    check_bind(used.host, guarded=not file.access.open, insecure=used.insecure)
    repository = (
        job_repository(
            models, serving or ServeSettings(), model_options, isolation, concurrency=settings.concurrency
        )
        if models
        else ModelRepository([])
    )
    parts = open_parts(
        at, file, maintain_s=settings.maintain_s, hold_off_s=settings.lease_s, retention=used.retention
    )
    desk_settings = DeskSettings(at.store_uri, slots_per_worker=settings.concurrency)
    announce = None if parts.dispatcher is None else parts.dispatcher.announce
    desk = JobDesk(
        parts.ledger,
        parts.stores,
        desk_settings,
        announce=announce,
        check_notify=_check_of(file),
        region_of=_region_of(file),
    )
    triggering = None if file.triggers is None else Triggering(file.triggers, desk.submit_ours)
    worker = join_worker(parts, repository, settings) if models else None
    services: list[Service] = [parts, repository, *([worker] if worker else []), desk]
    if used.events_queue_url:
        services.append(_events(used.events_queue_url, triggering))
    dataplane = Dataplane(repository, version=headrace.__version__, changeable=False)
    app = jobs_app(
        desk,
        file.access,
        version=headrace.__version__,
        workroom=Workroom(),
        vendor=file.vendor,
        triggering=triggering,
    )
    doors: dict[str, Listener] = {"jobs": HttpListener(app, used.host, used.port, used.tls)}
    if used.doors is not None and models:
        doors |= open_doors(dataplane, used.doors)
    drain = DrainSettings(grace_s=settings.drain_grace_s + settings.stop_s + 5.0)
    together = Serving(_Together(services), dataplane, list(doors.values()), drain=drain)
    return OpenedJobs(together, doors, parts, worker)


def _region_of(file: JobsFile) -> RegionOf | None:
    """Where data lives, by the file; None where it says nothing, so that nobody is asked."""
    rules = file.regions
    return Regions(rules).of if rules.rules or rules.ask_buckets else None


def _check_of(file: JobsFile) -> Callable[[Mapping[str, Any]], None]:
    """Refuses whom a submission cannot have told: bad entries, addresses that may not be reached, unknown names."""
    known = {target.endpoint_id for target in file.endpoints}

    def check(entry: Mapping[str, Any]) -> None:
        (whom,) = read_subscriptions([entry], file.outbound)
        if whom.target is None and whom.endpoint_id not in known:
            raise ConfigError(f"notify: there is no endpoint {whom.endpoint_id!r} here")
        if isinstance(whom.target, EmailTarget) and file.smtp is None:
            raise ConfigError("notify: no mail server is set up here")

    return check


def _file(options: JobsOptions, at: JobsAt) -> JobsFile:
    if options.config is None:
        whoever = anyone(inputs=options.allow_inputs, outputs=options.allow_outputs, reserved=at.own_places)
        return JobsFile(access=JobAccess(anyone=whoever))
    if options.allow_inputs or options.allow_outputs:
        raise ConfigError(
            "what may be named is said in the file of --config: leave --allow-input and --allow-output out"
        )
    return read_jobs_file(options.config, store_uri=at.store_uri, reserved=at.own_places)


def _events(queue_url: str, triggering: Triggering | None) -> Service:
    if triggering is None:
        raise ConfigError("a queue of object events needs [[triggers]] in the file of --config")
    from headrace.jobs.event_source import SqsEventSource  # noqa: PLC0415 - an extra

    return SqsEventSource(queue_url, triggering.handle)
