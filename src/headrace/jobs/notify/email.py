"""Notifications by e-mail, over SMTP: a few lines of text with references."""

import re
import smtplib
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import Annotated, Final, Literal

from typing_extensions import override

from headrace.core.errors import ConfigError
from headrace.core.settings import Setting, check
from headrace.jobs.notify import (
    Delivered,
    DeliveryResult,
    EmailTarget,
    Notification,
    Notifier,
    Refused,
    RetryLater,
    Target,
)

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
            message = encode(notification, self._settings.sender, target.to)
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


def encode(notification: Notification, sender: str, to: tuple[str, ...]) -> EmailMessage:
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
    message.set_content(_text(notification))
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


def _text(notification: Notification) -> str:
    lines = [f"job: {notification.job_id}", f"event: {notification.type}"]
    lines += [
        f"{name}: {_line(notification.data[name])}" for name in _SHOWN_FIELDS if notification.data.get(name)
    ]
    return "\n".join(lines) + "\n"


def _line(value: object) -> str:
    """Return a value on one line: a model's text must not look like headrace's own lines."""
    return " ".join(str(value).split())[:_LINE_CHARS_MAX]
