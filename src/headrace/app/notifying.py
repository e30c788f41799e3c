"""Who tells of jobs' ends: the deliverer over the ledger's outbox, and the notifiers that it sends by."""

import os
import threading
from collections.abc import Mapping
from typing import Any

from headrace.core.errors import ConfigError, HeadraceError
from headrace.jobs.deliverer import Deliverer
from headrace.jobs.ledgers.outbox import SqlOutbox
from headrace.jobs.notifier import (
    Answer,
    EmailTarget,
    Notification,
    Notifier,
    Notifiers,
    Refused,
    SnsTarget,
    Target,
    WebhookTarget,
)
from headrace.jobs.notifiers.email import EmailNotifier, SmtpSettings
from headrace.jobs.notifiers.webhook import WebhookNotifier
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
    """A deliverer of all that the outbox holds, not started. The client stays the caller's to close."""
    by_kind: dict[type[Target], Notifier] = {
        # What is signed is the database's time: that is what all of headrace goes by.
        WebhookTarget: WebhookNotifier(client, wall_s=lambda: outbox.now_ms() / 1000),
        SnsTarget: SnsWhenAsked(stores, os.environ if environ is None else environ),
    }
    if smtp is not None:
        by_kind[EmailTarget] = EmailNotifier(smtp)
    return Deliverer(outbox, Notifiers(by_kind))


class SnsWhenAsked:
    """Implements `Notifier` for SNS, whose client is made when somebody is to be told by it: few have it installed."""

    def __init__(self, stores: Stores, environ: Mapping[str, str]) -> None:
        self._stores = stores
        self._environ = environ
        self._lock = threading.Lock()
        self._made: Notifier | None = None

    def send(self, notification: Notification, target: Target) -> Answer:
        """See `Notifier.send`."""
        try:
            notifier = self._notifier()
        except HeadraceError as error:
            return Refused(str(error))
        return notifier.send(notification, target)

    def _notifier(self) -> Notifier:
        with self._lock:
            if self._made is None:
                from headrace.jobs.aws import AwsFault, aws_client  # noqa: PLC0415 - an extra
                from headrace.jobs.notifiers.sns import SnsNotifier  # noqa: PLC0415 - it imports that extra

                try:
                    client: Any = aws_client("sns", self._environ)
                except (AwsFault, ValueError) as error:
                    raise ConfigError(f"no client for SNS can be made of these settings: {error}") from error
                self._made = SnsNotifier(
                    client, region=client.meta.region_name, read_response=self._read_response
                )
            return self._made

    def _read_response(self, uri: str, bytes_max: int) -> bytes | None:
        data = self._stores.for_uri(uri).get_range(uri, 0, bytes_max + 1)
        return data if len(data) <= bytes_max else None
