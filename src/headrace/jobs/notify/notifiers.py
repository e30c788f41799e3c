"""The notifiers by webhook and by e-mail.

A webhook is a POST request in the form of Standard Webhooks or CloudEvents, with equal signatures.
An e-mail is a few lines of text with references, sent over SMTP.
"""

import logging
import re
import smtplib
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import orjson
from typing_extensions import override

from headrace.core.clock import retry_after_s
from headrace.core.errors import ConfigError, RefusedAddressError
from headrace.core.settings import Setting, check
from headrace.jobs.notify import (
    ENCRYPTED_PREFIX,
    Delivered,
    DeliveryResult,
    Disabled,
    EmailTarget,
    Notification,
    Notifier,
    Refused,
    RetryLater,
    Target,
    WebhookTarget,
    decode_secret,
    iso_time,
    signed_headers,
)
from headrace.jobs.outbound import OutboundFault, OutboundResponse
from headrace.jobs.outbound.client import OutboundClient

STANDARD: Final = "standard"
STRUCTURED: Final = "cloudevents-structured"
BINARY: Final = "cloudevents-binary"
FORMATS: Final = frozenset({STANDARD, STRUCTURED, BINARY})
KEYS_MAX: Final = 4
"""The number of secrets of a webhook. Replacing a secret needs two; each one lengthens the header.
"""

_THROTTLED: Final = frozenset({429, 502, 503, 504})
_SHOWN_BYTES_MAX: Final = 200
# CloudEvents: printable ASCII without the space, the double quote and the percent sign.
_HEADER_SAFE: Final = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')

RECIPIENTS_MAX: Final = 20
ADDRESS_CHARS_MAX: Final = 254
_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
    r"@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_FOR_GOOD: Final = 500
"""SMTP replies from here on are permanent failures."""
_SHOWN_FIELDS: Final = ("model", "reason", "output_uri", "failure_uri", "input_uri")
_LINE_CHARS_MAX: Final = 500

_log = logging.getLogger("headrace.jobs.notifiers.webhook")


class WebhookNotifier(Notifier):
    """A notifier that posts through a guarded client, whose total timeout limits an attempt.

    A response of status 2xx means delivered, whatever its body. Everything else is retried, also
    redirects, which are not followed. 410 disables the receiver.

    Args:
        client: The HTTP client; owned by the caller.
        source: The source of CloudEvents, a URI reference; (source, id) is unique.
        wall_s: Returns the signed time, in seconds since the epoch. Receivers refuse times that are
            minutes off: on hosts without synchronised clocks, pass the database's.
        decrypt: Returns a secret of a URL, which may be encrypted, as plain text; raises ConfigError.
    """

    def __init__(
        self,
        client: OutboundClient,
        *,
        source: str = "/headrace/jobs",
        wall_s: Callable[[], float] = time.time,
        decrypt: Callable[[str, str], str] | None = None,
    ) -> None:
        self._client = client
        self._source = source
        self._wall_s = wall_s
        self._decrypt = decrypt or _require_plain

    @override
    def send(self, notification: Notification, target: Target) -> DeliveryResult:
        if not isinstance(target, WebhookTarget):
            return Refused("not a webhook")
        try:
            secrets = [self._decrypt(secret, target.url) for secret in target.secrets]
        except ConfigError as error:
            # Another process, or this one after a restart, may have the right key.
            return RetryLater(f"the webhook's secret cannot be decrypted: {error}")
        try:
            keys = _keys(target.format, secrets)
            body, headers = encode_webhook(notification, target.format, self._source)
        except ConfigError as error:
            return Refused(str(error))
        headers |= signed_headers(keys, notification.event_id, int(self._wall_s()), body) if keys else {}
        if notification.trace:
            headers["traceparent"] = notification.trace
        try:
            response = self._client.send("POST", target.url, headers=headers, body=body)
        except RefusedAddressError as error:
            return Refused(str(error))
        except OutboundFault as fault:
            return RetryLater(str(fault))
        if not _has_it(response):
            # Logged only: a response body may come from an internal server and is not for clients.
            shown = response.body[:_SHOWN_BYTES_MAX]
            _log.info("%s responded with HTTP %d: %r", target.receiver_id, response.status, shown)
        return result_of_response(response, self._wall_s())


def encode_webhook(notification: Notification, format: str, source: str) -> tuple[bytes, dict[str, str]]:
    """Return a notification's body and format headers. Raise ConfigError for an unknown format."""
    if format == STANDARD:
        event = {
            "type": notification.type,
            "timestamp": iso_time(notification.at_ms),
            "data": orjson.Fragment(notification.data_json()),
        }
        return orjson.dumps(event), {"Content-Type": "application/json"}
    attributes = {
        "specversion": "1.0",
        "id": notification.event_id,
        "source": source,
        "type": notification.type,
        "subject": notification.job_id,
        "time": iso_time(notification.at_ms),
    }
    if format == BINARY:
        headers = {f"ce-{name}": quote(value, safe=_HEADER_SAFE) for name, value in attributes.items()}
        return notification.data_json(), {"Content-Type": "application/json", **headers}
    if format == STRUCTURED:
        event: dict[str, Any] = {**attributes, "datacontenttype": "application/json"}
        event["data"] = orjson.Fragment(notification.data_json())
        return orjson.dumps(event), {"Content-Type": "application/cloudevents+json; charset=UTF-8"}
    raise ConfigError(f"unknown webhook format {format!r}; known: {', '.join(sorted(FORMATS))}")


def result_of_response(response: OutboundResponse, wall_s: float) -> DeliveryResult:
    """Return the delivery result of a response; its body is ignored."""
    if _has_it(response):
        return Delivered(f"HTTP {response.status}")
    if response.status == HTTPStatus.GONE:
        return Disabled("HTTP 410: the receiver refuses further notifications")
    why = f"HTTP {response.status}"
    if HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST:
        why += ": redirects are not followed; register the final address"
    after_s = retry_after_s(response.headers.get("retry-after"), wall_s)
    return RetryLater(why, after_s=after_s, throttled=response.status in _THROTTLED)


def _has_it(response: OutboundResponse) -> bool:
    return HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES


def _require_plain(secret: str, _url: str) -> str:
    if secret.startswith(ENCRYPTED_PREFIX):
        raise ConfigError("this process has no encryption key: start it with --encryption-key FILE")
    return secret


def _keys(format: str, secrets: Sequence[str]) -> list[bytes]:
    if not secrets and format == STANDARD:
        raise ConfigError("a standard webhook needs a secret for its signature")
    if len(secrets) > KEYS_MAX:
        raise ConfigError(f"the webhook has {len(secrets)} secrets; the limit is {KEYS_MAX}")
    return [decode_secret(secret) for secret in secrets]


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    """The operator's mail server.

    The security ``none`` is refused together with a user, so that no credentials are sent
    unencrypted.
    """

    host: Annotated[str, Setting("Host of the mail server.")]
    sender: Annotated[str, Setting("Sender's address.")]
    port: Annotated[int, Setting("Port of the mail server.", least=1, most=65535)] = 587
    security: Annotated[
        Literal["starttls", "tls", "none"],
        Setting("Encryption: by STARTTLS, from the first byte (tls), or none."),
    ] = "starttls"
    user: Annotated[str, Setting("User name.")] = ""
    password: Annotated[str, Setting("Password.")] = field(default="", repr=False)
    timeout_s: Annotated[float, Setting("Timeout of connecting and of each reply in seconds.", above=0)] = (
        10.0
    )

    def __post_init__(self) -> None:
        check(self)
        if self.user and self.security == "none":
            raise ConfigError("smtp user without encryption: set smtp security to starttls or tls")
        require_mailbox(self.sender)


class EmailNotifier(Notifier):
    """A notifier that sends one message per notification, over its own connection.

    Args:
        settings: The mail server.
        trust: Trusted certificates; None: the system's.
    """

    def __init__(self, settings: SmtpSettings, *, trust: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._trust = trust or ssl.create_default_context()

    @override
    def send(self, notification: Notification, target: Target) -> DeliveryResult:
        """Send one message. It counts as delivered if one of several mailboxes accepts it."""
        if not isinstance(target, EmailTarget):
            return Refused("not an e-mail target")
        try:
            message = encode_email(notification, self._settings.sender, target.to)
        except ConfigError as error:
            return Refused(str(error))
        try:
            with self._connected() as server:
                refused = server.send_message(message, self._settings.sender, list(target.to))
        except smtplib.SMTPRecipientsRefused as error:
            codes = [int(code) for code, _ in error.recipients.values()]
            why = f"the mail server accepts none of the mailboxes ({min(codes)})"
            return Refused(why) if min(codes) >= _FOR_GOOD else RetryLater(why)
        except smtplib.SMTPAuthenticationError as error:
            return RetryLater(f"the mail server refused the user and password ({error.smtp_code})")
        except smtplib.SMTPResponseException as error:
            why = f"the mail server refused the message ({error.smtp_code})"
            return Refused(why) if error.smtp_code >= _FOR_GOOD else RetryLater(why)
        except (OSError, smtplib.SMTPException) as error:
            return RetryLater(f"the mail server is unavailable ({type(error).__name__})")
        return Delivered(f"mailed to {len(target.to) - len(refused)} of {len(target.to)}")

    def _connected(self) -> smtplib.SMTP:
        """Return a connection, secured and logged in as the settings say."""
        s = self._settings
        if s.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(s.host, s.port, timeout=s.timeout_s, context=self._trust)
        else:
            server = smtplib.SMTP(s.host, s.port, timeout=s.timeout_s)
        try:
            if s.security == "starttls":
                # Raises if the server does not offer it, so that nothing is sent unencrypted.
                server.starttls(context=self._trust)
            if s.user:
                server.login(s.user, s.password)
        except BaseException:
            server.close()
            raise
        return server


def encode_email(notification: Notification, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """Return the message. Raise ConfigError for an invalid mailbox, and for none or too many."""
    if not 0 < len(to) <= RECIPIENTS_MAX:
        raise ConfigError(f"{len(to)} mailboxes; 1 to {RECIPIENTS_MAX} are permitted")
    message = EmailMessage(policy=SMTP)
    message["From"] = require_mailbox(sender)
    message["To"] = ", ".join(map(require_mailbox, to))
    message["Subject"] = f"{notification.type}: {notification.job_id}"
    message["Date"] = datetime.fromtimestamp(notification.at_ms / 1000, UTC)
    # The id is the same each time, so that clients show a repeated message once.
    message["Message-ID"] = f"<{notification.event_id}@{sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Headrace-Event"] = notification.event_id
    message.set_content(_email_text(notification))
    return message


def require_mailbox(text: str) -> str:
    """Return a plain mailbox such as ``ops@example.com``.

    Raise ConfigError for everything else, including text that could add a header.
    """
    if len(text) > ADDRESS_CHARS_MAX or not _ADDRESS.fullmatch(text):
        raise ConfigError(
            f"{text[:ADDRESS_CHARS_MAX]!r} is not a mailbox; write name@host, without a display name"
        )
    return text


def _email_text(notification: Notification) -> str:
    lines = [f"job: {notification.job_id}", f"event: {notification.type}"]
    lines += [
        f"{name}: {_one_line(notification.data[name])}"
        for name in _SHOWN_FIELDS
        if notification.data.get(name)
    ]
    return "\n".join(lines) + "\n"


def _one_line(value: object) -> str:
    """Return a value on one line: a model's text must not look like headrace's own lines."""
    return " ".join(str(value).split())[:_LINE_CHARS_MAX]
