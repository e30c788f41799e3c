"""Build the deliverer of job notifications, with a notifier for each target type."""

import os
import threading
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from headrace.core.errors import ConfigError, HeadraceError
from headrace.jobs.ledgers.outbox import SqlOutbox
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
from headrace.jobs.outbound.client import OutboundClient
from headrace.storage.resolve import Stores


def open_deliverer(
    outbox: SqlOutbox,
    client: OutboundClient,
    stores: Stores,
    *,
    smtp: SmtpSettings | None = None,
    environ: Mapping[str, str] | None = None,
) -> Deliverer:
    """Return a deliverer for the outbox, not started. The caller keeps ownership of `client`."""
    by_kind: dict[type[Target], Notifier] = {
        # Sign with the database's time: all clocks of headrace follow it.
        WebhookTarget: WebhookNotifier(client, wall_s=lambda: outbox.now_ms() / 1000),
        SnsTarget: LazySnsNotifier(stores, os.environ if environ is None else environ),
    }
    if smtp is not None:
        by_kind[EmailTarget] = EmailNotifier(smtp)
    return Deliverer(outbox, Notifiers(by_kind))


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
