"""Build the job server: the job API, with an optional worker and listeners for its models."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_bytes
from typing import Any, Final

import headrace
from headrace.app.job_components import JobComponents, open_job_components
from headrace.app.job_worker import job_repository, join_worker
from headrace.app.models import ServedModel
from headrace.app.notify_entries import notify_preparation
from headrace.app.server_options import JobLocations, JobsOptions
from headrace.app.service_group import ServiceGroup
from headrace.app.tracing import Tracing, open_tracing
from headrace.app.worker_pool import WorkerProcesses, processes_stop_s
from headrace.config.jobs_file import NO_LIMITS, JobsFile, anonymous_key, read_jobs_file
from headrace.core.errors import ConfigError
from headrace.core.model import Isolation
from headrace.core.predictor import Service
from headrace.engine.repository import ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.jobs.access import PENDING_MAX_DEFAULT, Access, Scope
from headrace.jobs.intake import RegionOf
from headrace.jobs.maintenance import Maintenance, MaintenanceTask
from headrace.jobs.schedule_submitter import ScheduleSubmitter
from headrace.jobs.service import JobService, JobServiceSettings
from headrace.jobs.trigger import EventSubmitter
from headrace.jobs.worker.worker import Worker
from headrace.scaling.instances import InstanceScaler, RepositoryModels
from headrace.server.application import Guard, WebApp, check_bind
from headrace.server.dataplane import Dataplane
from headrace.server.jobs.api import BoundedThreadPool
from headrace.server.jobs.app import job_routes
from headrace.server.jobs.metrics import (
    ledger_metrics,
    process_metrics,
    read_ledger,
    worker_metrics,
)
from headrace.server.jobs.shared_reading import SharedReading
from headrace.server.listen import HttpListener, new_event_loop
from headrace.server.listener import DrainSettings, Listener, Serving
from headrace.server.metrics import Metrics, MetricsApp, MetricSource
from headrace.server.observation import Observer, ResponseCounters
from headrace.server.openapi import documentation_routes
from headrace.server.rest import model_app
from headrace.server.routes import Route
from headrace.server.sessions import Sessions, session_routes
from headrace.storage.regions import RegionResolver

_SCHEDULES_S: Final = 1.0
"""The interval in seconds at which due schedules are looked for. The times of a schedule are minutes."""

_log = logging.getLogger("headrace.jobs")


@dataclass(frozen=True, slots=True)
class OpenedJobs:
    """A job server with bound ports, built but not started."""

    serving: Serving
    listeners: Mapping[str, Listener]
    components: JobComponents
    worker: Worker | None
    tracing: Tracing
    """The tracer of jobs and requests; `run` closes it."""

    @property
    def pending_max(self) -> int | None:
        """The limit of waiting jobs of a server without keys; None if keys have limits of their own."""
        access = self.components.file.access
        return access.check(None, Scope.SUBMIT).pending_max if access.open else None

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses by listener name.

        The address of a port 0 shows the chosen port once the server runs.
        """
        return {name: listener.address for name, listener in self.listeners.items()}

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Run until SIGTERM or SIGINT, then drain and return.

        Call it in the main thread; it blocks.
        """
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self.serving.run(on_ready))
        finally:
            self.tracing.close()


def open_jobs(
    models: Sequence[ServedModel],
    locations: JobLocations,
    options: JobsOptions | None = None,
    *,
    serving: ServeSettings | None = None,
    model_options: Mapping[str, Any] | None = None,
    isolation: Isolation = "process",
    processes: WorkerProcesses | None = None,
) -> OpenedJobs:
    """Build the job API and, if there are models, a worker. Connect and load nothing yet.

    With `processes`, workers in processes of their own run the jobs: give no `models` then.

    Traces are exported if the ``OTEL_*`` environment variables request it.

    Raises ConfigError for an unknown model, a port in use, or a public address without access
    control.
    """
    options = options or JobsOptions()
    settings = options.worker
    file = _read_config(options, locations)
    check_bind(options.host, guarded=not file.access.open, insecure=options.insecure)
    tracing = open_tracing()
    repository = (
        job_repository(
            models, serving or ServeSettings(), model_options, isolation, concurrency=settings.concurrency
        )
        if models
        else ModelRepository([])
    )
    components = open_job_components(
        locations,
        file,
        maintain_s=settings.maintain_s,
        hold_off_s=settings.lease_s,
        retention=options.retention,
        tracer=tracing.jobs,
    )
    service_settings = JobServiceSettings(
        locations.store_uri,
        slots_per_worker=settings.concurrency,
        signed_urls=options.signed_urls,
        default_deadline_s=options.default_deadline_s,
        reserved_uris=locations.reserved_uris,
        scaled_queues=frozenset() if processes is None else frozenset(processes.pool.queues),
        shared_outputs=() if file.sagemaker is None else (file.sagemaker.output_uri,),
    )
    announce = None if components.dispatcher is None else components.dispatcher.announce
    service = JobService(
        components.ledger,
        components.stores,
        service_settings,
        announce=announce,
        prepare_notify=notify_preparation(file, components.encryption_key),
        prepare_endpoint=components.prepare_endpoint,
        region_of=_region_resolver(file),
        outbox=components.ledger.outbox,
        tracer=tracing.jobs,
        access=file.access,
    )
    event_submitter = (
        None if file.triggers is None else EventSubmitter(file.triggers, service.submit_internal)
    )
    worker = join_worker(components, repository, settings) if models else None
    services: list[Service] = [components, repository]
    if worker is not None:
        # The scaler runs in any case: a range of instances may also be set later.
        services += [InstanceScaler(RepositoryModels(repository)), worker]
    services += [service, _scheduler(components, service)]
    if processes is not None:
        services.append(processes.controller(components.ledger, settings))
    if options.events_queue_url:
        services.append(_open_event_source(options.events_queue_url, event_submitter))
    dataplane = Dataplane(repository, version=headrace.__version__, changeable=False)
    # Without a key file, sessions end with the process.
    key = components.encryption_key
    sessions = Sessions(file.access, token_bytes() if key is None else key.derive("sessions"))
    guard = Guard(file.access, bound_to=options.host, allow_hosts=options.allow_hosts, sessions=sessions)
    thread_pool = BoundedThreadPool()
    routes = job_routes(
        service, thread_pool=thread_pool, sagemaker=file.sagemaker, event_submitter=event_submitter
    ) + session_routes(sessions, file.access)
    observers = None if tracing.requests is None else [tracing.requests]
    listeners, counters = _open_listeners(options, guard, routes, dataplane if models else None, observers)
    metrics: dict[str, Listener] = {}
    if options.metrics_port is not None:
        sources = _metric_sources(components, worker)
        # The labels and the counts are those of all tenants.
        app = MetricsApp(Metrics(dataplane, [counters], sources), guard, scopes=(Scope.MONITOR,))
        metrics["metrics"] = HttpListener(app, options.host, options.metrics_port, options.tls)
    drain_s = settings.drain_grace_s + settings.stop_s if processes is None else processes_stop_s(settings)
    drain = DrainSettings(grace_s=drain_s + 5.0)
    server = Serving(
        # The calls of the API can wait for nothing once the services have stopped.
        ServiceGroup(services, thread_pool.close),
        dataplane.drain,
        list(listeners.values()),
        stopped_last=list(metrics.values()),
        drain=drain,
    )
    return OpenedJobs(server, listeners | metrics, components, worker, tracing)


def _scheduler(components: JobComponents, service: JobService) -> Service:
    """Return the service that submits the jobs of due schedules."""
    submitter = ScheduleSubmitter(
        components.ledger,
        service.settings.submission_limits,
        find_key=components.file.access.named,
        submit=service.submit,
    )
    task = MaintenanceTask("schedules", _SCHEDULES_S, submitter.tick, submitter.round_runs)
    return Maintenance([task], hold_off_s=_SCHEDULES_S)


def _metric_sources(components: JobComponents, worker: Worker | None) -> list[MetricSource]:
    """Return the sources of the ledger's metrics and, if there is a worker, of its own."""
    ledger = components.ledger
    reading = SharedReading(partial(read_ledger, ledger, ledger.outbox))
    of_worker = [] if worker is None else [worker_metrics(worker)]
    return [ledger_metrics(reading), process_metrics(ledger, reading), *of_worker]


def _open_listeners(
    options: JobsOptions,
    guard: Guard,
    routes: Sequence[Route],
    dataplane: Dataplane | None,
    observers: Sequence[Observer] | None,
) -> tuple[dict[str, Listener], ResponseCounters]:
    """Return the listener ``jobs`` and, to serve the models of `dataplane`, those of models.

    ``jobs`` and ``rest`` serve one application, so that either address has jobs and models. Return
    the counters of its responses, too.
    """
    if options.model_server is None or dataplane is None:
        documentation = documentation_routes(routes, guard, version=headrace.__version__)
        app = WebApp([*routes, *documentation], guard, observers=observers)
        return {"jobs": HttpListener(app, options.host, options.port, options.tls)}, app.response_counters
    from headrace.app.serving import open_listeners  # noqa: PLC0415 - extra `serve`

    of_models = options.model_server
    if of_models.api_keys is not None:
        raise ConfigError(
            "the keys of a job server protect its models, too: put all keys into its config file"
        )
    check_bind(of_models.host, guarded=not guard.access.open, insecure=of_models.insecure)
    app = model_app(dataplane, guard=guard, limits=of_models.limits, observers=observers, job_routes=routes)
    jobs = HttpListener(app, options.host, options.port, options.tls, direct=app.direct)
    listeners, _ = open_listeners(app, dataplane, of_models, guard, observers)
    return {"jobs": jobs, **listeners}, app.response_counters


def _region_resolver(file: JobsFile) -> RegionOf | None:
    """Return the function that maps a URI to its region, or None if the file has no region rules."""
    rules = file.regions
    return RegionResolver(rules).resolve if rules.rules or rules.ask_buckets else None


def _read_config(options: JobsOptions, locations: JobLocations) -> JobsFile:
    if options.config is None:
        key = anonymous_key(
            inputs=options.allow_inputs,
            outputs=options.allow_outputs,
            pending_max=options.pending_max,
            reserved=locations.reserved_uris,
        )
        return JobsFile(access=Access(anonymous=key), limits=NO_LIMITS)
    if options.allow_inputs or options.allow_outputs:
        raise ConfigError(
            "--allow-input and --allow-output cannot be used with --config: "
            "set inputs and outputs of each key in that file"
        )
    if options.pending_max != PENDING_MAX_DEFAULT:
        raise ConfigError(
            "--pending-max cannot be used with --config: "
            "set pending_max of [anyone], or of each key, in that file"
        )
    return read_jobs_file(options.config, store_uri=locations.store_uri, reserved=locations.reserved_uris)


def _open_event_source(queue_url: str, event_submitter: EventSubmitter | None) -> Service:
    if event_submitter is None:
        raise ConfigError("--events-queue needs [[triggers]] in the file of --config")
    from headrace.jobs.aws import SqsEventSource  # noqa: PLC0415 - optional dependency

    return SqsEventSource(queue_url, event_submitter.handle)
