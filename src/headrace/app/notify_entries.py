"""The ``notify`` entries of submissions and endpoints: validated, and encrypted for the ledger."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.config.jobs_file import JobsFile
from headrace.core.errors import ConfigError
from headrace.jobs.access.endpoints import EndpointSettings
from headrace.jobs.encryption import EncryptionKey
from headrace.jobs.intake import PrepareEndpoint, PrepareNotify
from headrace.jobs.job import NewJob
from headrace.jobs.kinds.runners import check_options
from headrace.jobs.notify import ENCRYPTED_PREFIX, EmailTarget, WebhookTarget
from headrace.jobs.notify.subscription import read_subscriptions


def notify_preparation(file: JobsFile, encryption_key: EncryptionKey | None) -> PrepareNotify:
    """Return a function that validates one ``notify`` entry of a submission, and encrypts its secret.

    It raises ConfigError for malformed entries, refused addresses, unknown receivers, e-mail without
    a configured mail server, and a secret without an encryption key.
    """
    known = {target.receiver_id for target in file.receivers}

    def prepare(entry: Mapping[str, Any]) -> Mapping[str, Any]:
        (subscription,) = read_subscriptions([entry], file.outbound)
        if subscription.target is None and subscription.receiver_id not in known:
            raise ConfigError(
                f"notify: unknown receiver {subscription.receiver_id!r}: declare it as [receivers.NAME]"
            )
        if isinstance(subscription.target, EmailTarget) and file.smtp is None:
            raise ConfigError("notify: e-mail needs a mail server: declare [smtp] in the file of --config")
        if not isinstance(subscription.target, WebhookTarget) or not subscription.target.secrets:
            return entry
        if encryption_key is None:
            raise ConfigError(
                "notify: this server cannot keep the secret of a webhook: start it with --encryption-key FILE"
            )
        return {**entry, "secret": encryption_key.encrypt(entry["secret"], subscription.target.url)}

    return prepare


def endpoint_preparation(file: JobsFile, encryption_key: EncryptionKey | None) -> PrepareEndpoint:
    """Return a function that validates the settings of an endpoint, and encrypts secrets of webhooks.

    Equal settings have an equal result. It raises ConfigError as that of `notify_preparation` does,
    and for options that the kind does not have.
    """
    prepare_entry = notify_preparation(file, encryption_key)

    def plain(entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entry with its secret decrypted, if it was kept from the stored settings."""
        secret = entry.get("secret")
        if encryption_key is None or not isinstance(secret, str) or not secret.startswith(ENCRYPTED_PREFIX):
            return entry
        return {**entry, "secret": encryption_key.decrypt(secret, str(entry.get("webhook")))}

    def prepare(settings: EndpointSettings) -> EndpointSettings:
        check_options(
            NewJob(
                model=settings.model,
                kind=settings.kind,
                output_uri=settings.output_uri,
                options=settings.options,
            )
        )
        return replace(settings, notify=tuple(prepare_entry(plain(entry)) for entry in settings.notify))

    return prepare
