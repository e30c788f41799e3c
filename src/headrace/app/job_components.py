"""Build the shared components of all job processes: ledger, stores, maintenance and notifications."""

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from typing_extensions import override

from headrace.app.notify_entries import endpoint_preparation
from headrace.app.server_options import JobLocations
from headrace.config.jobs_file import JobsFile
from headrace.core.clock import RetryPolicy, SystemClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.predictor import Service
from headrace.jobs.access.endpoints import EndpointSettings
from headrace.jobs.brokers import WakeupBroker, open_wakeup_broker
from headrace.jobs.encryption import EncryptionKey, create_key_file
from headrace.jobs.intake import PrepareEndpoint
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.ledgers.outbox import SqlOutbox
from headrace.jobs.ledgers.sql import SqlJobLedger
from headrace.jobs.maintenance import (
    Maintenance,
    MaintenanceTask,
    Reaper,
    Reconciler,
    ResultPublisher,
    Retention,
    Sweeper,
)
from headrace.jobs.notify import (
    DeliveryResult,
    EmailTarget,
    Notification,
    Notifier,
    Notifiers,
    Refused,
    SnsTarget,
    Target,
    WebhookTarget,
)
from headrace.jobs.notify.deliverer import Deliverer
from headrace.jobs.notify.notifiers import EmailNotifier, SmtpSettings, WebhookNotifier
from headrace.jobs.outbound.client import InputStore, OutboundClient
from headrace.jobs.paths import JobPaths
from headrace.jobs.payloads import Publication
from headrace.jobs.tracing import JobTracer
from headrace.storage.contract import Store
from headrace.storage.resolve import Stores
from headrace.storage.retry import Retrier

INPUT_BYTES_MAX: Final = 16 << 30
"""The size limit of an input from an HTTP or HTTPS URL."""
SETTINGS_FILE: Final = "settings file"
"""The writer of endpoints that the settings file declares."""
_SWEEP_S: Final = 300.0
_ORPHAN_SWEEP_S: Final = 3600.0
_RECONCILE_S: Final = 30.0


class JobStores(Stores):
    """The stores of all URI schemes; HTTP and HTTPS URLs are read through the guarded client."""

    def __init__(self, client: OutboundClient) -> None:
        super().__init__()
        self._client = client

    def _make(self, scheme: str) -> Store:
        if scheme in {"http", "https"}:
            retrier = Retrier(SystemClock(), RetryPolicy(retry_s=self.retry_s))
            return InputStore(self._client, retrier, bytes_max=INPUT_BYTES_MAX)
        return super()._make(scheme)


@dataclass(frozen=True, slots=True)
class JobComponents:
    """The components of a job process, as one service.

    `start` starts them in order; `stop` stops them in reverse order.
    """

    file: JobsFile
    """The settings file; the secrets of its receivers and endpoints are encrypted."""
    ledger: SqlJobLedger
    stores: Stores
    paths: JobPaths
    publication: Publication
    client: OutboundClient
    encryption_key: EncryptionKey | None
    dispatcher: WakeupBroker | None
    prepare_endpoint: PrepareEndpoint
    services: tuple[Service, ...]
    """The maintenance of the ledger and, optionally, the notification deliverer."""
    tracer: JobTracer | None
    """The tracer of jobs; the caller closes it."""
    _running: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Connect and start the maintenance.

        If a component fails to start, stop the others and raise its error.
        """
        with ExitStack() as stack:
            stack.callback(self.client.close)
            stack.callback(self.stores.close)
            self.ledger.start()
            stack.callback(self.ledger.stop)
            for name, changes in self.file.queues.items():
                # The file sets only the members that it names, so a queue paused by an operator
                # stays paused.
                self.ledger.set_queue(replace(self.ledger.queue(name), **changes))
            for kind, limits in (self.file.limits or {}).items():
                self.ledger.set_limits(kind, limits)
            for target in self.file.receivers:
                self.ledger.outbox.register(target)
            for name, settings in self.file.endpoints.items():
                self.ledger.set_endpoint(name, settings, by=SETTINGS_FILE)
            components = [self.dispatcher] if self.dispatcher is not None else []
            for service in (*components, *self.services):
                service.start()
                stack.callback(service.stop)
            self._running.push(stack.pop_all())

    def stop(self, *, drain: bool = True) -> None:
        """Stop the services and close all connections. A second call does nothing."""
        del drain  # Each service ends its own work within its own time limits.
        self._running.close()


def open_job_components(
    locations: JobLocations,
    file: JobsFile | None = None,
    *,
    maintain_s: float,
    hold_off_s: float,
    retention: Retention | None = None,
    deliver: bool = True,
    connections_max: int | None = None,
    tracer: JobTracer | None = None,
) -> JobComponents:
    """Build the components without connecting. Raise ConfigError for invalid settings.

    With `deliver`, this process sends the notifications of jobs. Set it only in a process that has
    the configuration file: without the mail server and the allowed networks, a deliverer would
    refuse such notifications permanently. `connections_max` is as for `open_ledger`.
    """
    locations.make_folders()
    encryption_key = _load_encryption_key(locations)
    used = file or JobsFile()
    used = replace(
        used, receivers=tuple(_with_encrypted_secrets(target, encryption_key) for target in used.receivers)
    )
    prepare_endpoint = endpoint_preparation(used, encryption_key)
    endpoints: dict[str, EndpointSettings] = {}
    for name, settings in used.endpoints.items():
        try:
            endpoints[name] = prepare_endpoint(settings)
        except ConfigError as error:
            raise ConfigError(f"endpoints.{name}: {error}") from error
    used = replace(used, endpoints=endpoints)
    ledger = open_ledger(locations.ledger_url, connections_max=connections_max)
    client = OutboundClient(used.outbound)
    stores, paths = JobStores(client), JobPaths(locations.store_uri)
    publication = Publication(ledger, stores, hide=paths.store_uri, tracer=tracer)
    dispatcher = open_wakeup_broker(locations.dispatcher_url) if locations.dispatcher_url else None
    sweeper = Sweeper(ledger, stores, paths, retention or Retention())
    maintenance = Maintenance(
        _maintenance_tasks(ledger, publication, sweeper, dispatcher, maintain_s=maintain_s),
        hold_off_s=hold_off_s,
    )
    services: list[Service] = [maintenance]
    if deliver:
        services.append(
            open_deliverer(
                ledger.outbox,
                client,
                stores,
                smtp=used.smtp,
                encryption_key=encryption_key,
                tracer=tracer,
            )
        )
    return JobComponents(
        used,
        ledger,
        stores,
        paths,
        publication,
        client,
        encryption_key,
        dispatcher,
        prepare_endpoint,
        tuple(services),
        tracer,
    )


def _load_encryption_key(locations: JobLocations) -> EncryptionKey | None:
    """Return the encryption key, or None without a key file.

    The one in the data folder is created if it is missing. A file that the operator names must exist,
    because all processes of one ledger need the same key.
    """
    if locations.key_file is None:
        return None
    if locations.encryption_key is None:
        create_key_file(locations.key_file)
    return EncryptionKey.load(locations.key_file)


def _with_encrypted_secrets(target: Target, encryption_key: EncryptionKey | None) -> Target:
    if not isinstance(target, WebhookTarget) or not target.secrets:
        return target
    if encryption_key is None:
        raise ConfigError(
            f"receivers.{target.receiver_id}: the ledger keeps its secret encrypted: "
            "start the server with --encryption-key FILE"
        )
    secrets = tuple(encryption_key.encrypt(secret, target.url) for secret in target.secrets)
    return replace(target, secrets=secrets)


def _maintenance_tasks(
    ledger: SqlJobLedger,
    publication: Publication,
    sweeper: Sweeper,
    dispatcher: WakeupBroker | None,
    *,
    maintain_s: float,
) -> Sequence[MaintenanceTask]:
    """Return the maintenance tasks of a job process. Any number of processes may run them at once."""
    reaper, publisher = Reaper(ledger), ResultPublisher(ledger, publication)
    tasks = [
        MaintenanceTask("reaper", maintain_s, reaper.tick, reaper.round_jobs),
        MaintenanceTask("publisher", maintain_s, publisher.tick, publisher.round_jobs),
        MaintenanceTask("sweeper", _SWEEP_S, sweeper.tick, sweeper.round_jobs),
        MaintenanceTask("orphans", _ORPHAN_SWEEP_S, sweeper.orphans),
    ]
    if dispatcher is not None:
        reconciler = Reconciler(ledger, dispatcher.announce, overdue_s=_RECONCILE_S)
        tasks.append(MaintenanceTask("reconciler", _RECONCILE_S, reconciler.tick))
    return tasks


def open_deliverer(
    outbox: SqlOutbox,
    client: OutboundClient,
    stores: Stores,
    *,
    smtp: SmtpSettings | None = None,
    encryption_key: EncryptionKey | None = None,
    environ: Mapping[str, str] | None = None,
    tracer: JobTracer | None = None,
) -> Deliverer:
    """Return a deliverer for the outbox, not started. The caller keeps ownership of `client`."""
    by_kind: dict[type[Target], Notifier] = {
        # Sign with the database's time: all clocks of headrace follow it.
        WebhookTarget: WebhookNotifier(
            client,
            wall_s=lambda: outbox.now_ms() / 1000,
            decrypt=None if encryption_key is None else encryption_key.decrypt,
        ),
        SnsTarget: LazySnsNotifier(stores, os.environ if environ is None else environ),
    }
    if smtp is not None:
        by_kind[EmailTarget] = EmailNotifier(smtp)
    return Deliverer(outbox, Notifiers(by_kind), tracer=tracer)


class LazySnsNotifier(Notifier):
    """A notifier for SNS that creates its client at the first notification.

    boto3 is an optional dependency that few installations have.
    """

    def __init__(self, stores: Stores, environ: Mapping[str, str]) -> None:
        self._stores = stores
        self._environ = environ
        self._lock = threading.Lock()
        self._cached: Notifier | None = None

    @override
    def send(self, notification: Notification, target: Target) -> DeliveryResult:
        try:
            notifier = self._notifier()
        except HeadraceError as error:
            return Refused(str(error))
        return notifier.send(notification, target)

    def _notifier(self) -> Notifier:
        with self._lock:
            if self._cached is None:
                from headrace.jobs.aws import (  # noqa: PLC0415 - optional dependency
                    AwsFault,
                    SnsNotifier,
                    aws_client,
                )

                try:
                    client: Any = aws_client("sns", self._environ)
                except (AwsFault, ValueError) as error:
                    raise ConfigError(
                        f"cannot create an SNS client from the AWS settings: {error}"
                    ) from error
                self._cached = SnsNotifier(
                    client, region=client.meta.region_name, read_response=self._read_response
                )
            return self._cached

    def _read_response(self, uri: str, bytes_max: int) -> bytes | None:
        data = self._stores.for_uri(uri).get_range(uri, 0, bytes_max + 1)
        return data if len(data) <= bytes_max else None
