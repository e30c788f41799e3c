"""Notifications as e-mail, over SMTP: a few lines of text, with references and no output."""

import re
import smtplib
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final, Literal

from headrace.core.errors import ConfigError
from headrace.jobs.notifier import Answer, Delivered, EmailTarget, Notification, Refused, Retry, Target

RECIPIENTS_MAX: Final = 20
ADDRESS_CHARS_MAX: Final = 254
_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
    r"@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_FOR_GOOD: Final = 500
"""SMTP's replies from here on say that trying again would not help."""
_TOLD: Final = ("model", "reason", "output_uri", "failure_uri", "input_uri")
_LINE_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    """The operator's mail server.

    `security` is ``starttls``, ``tls`` (from the first byte) or ``none``, which sends credentials to nobody: it is
    refused together with a user. `timeout_s` is for connecting and for each reply.
    """

    host: str
    sender: str
    port: int = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password: str = field(default="", repr=False)
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.security not in {"starttls", "tls", "none"}:
            raise ConfigError(f"smtp security {self.security!r}: known are starttls, tls and none")
        if self.user and self.security == "none":
            raise ConfigError("a password would go out readable: set smtp security to starttls or tls")
        address(self.sender)


class EmailNotifier:
    """Sends a message a notification, over a connection of its own.

    Args:
        settings: The mail server.
        trust: Certificates to trust; None: those of the system.
    """

    def __init__(self, settings: SmtpSettings, *, trust: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._trust = trust or ssl.create_default_context()

    def send(self, notification: Notification, target: Target) -> Answer:
        """See `Notifier.send`. A message that one of several mailboxes takes is delivered: it is not sent again."""
        if not isinstance(target, EmailTarget):
            return Refused("not a target of e-mail")
        try:
            message = encode(notification, self._settings.sender, target.to)
        except ConfigError as error:
            return Refused(str(error))
        try:
            with self._connected() as server:
                refused = server.send_message(message, self._settings.sender, list(target.to))
        except smtplib.SMTPRecipientsRefused as error:
            codes = [int(code) for code, _ in error.recipients.values()]
            why = f"the mail server takes none of the mailboxes ({min(codes)})"
            return Refused(why) if min(codes) >= _FOR_GOOD else Retry(why)
        except smtplib.SMTPAuthenticationError as error:
            return Retry(f"the mail server does not take the user and password ({error.smtp_code})")
        except smtplib.SMTPResponseException as error:
            why = f"the mail server refused the message ({error.smtp_code})"
            return Refused(why) if error.smtp_code >= _FOR_GOOD else Retry(why)
        except (OSError, smtplib.SMTPException) as error:
            return Retry(f"the mail server could not be asked ({type(error).__name__})")
        return Delivered(f"mailed to {len(target.to) - len(refused)} of {len(target.to)}")

    def _connected(self) -> smtplib.SMTP:
        """A connection, secured and logged in as the settings say."""
        s = self._settings
        if s.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(s.host, s.port, timeout=s.timeout_s, context=self._trust)
        else:
            server = smtplib.SMTP(s.host, s.port, timeout=s.timeout_s)
        try:
            if s.security == "starttls":
                # Raises when the server does not offer it: never on in the clear.
                server.starttls(context=self._trust)
            if s.user:
                server.login(s.user, s.password)
        except BaseException:
            server.close()
            raise
        return server


def encode(notification: Notification, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """The message. Raises ConfigError for a mailbox that is no plain address, and for none or too many."""
    if not 0 < len(to) <= RECIPIENTS_MAX:
        raise ConfigError(f"{len(to)} mailboxes; 1 to {RECIPIENTS_MAX} are taken")
    message = EmailMessage(policy=SMTP)
    message["From"] = address(sender)
    message["To"] = ", ".join(map(address, to))
    message["Subject"] = f"{notification.type}: {notification.job_id}"
    message["Date"] = datetime.fromtimestamp(notification.at_ms / 1000, UTC)
    # The same each time, so that a message that comes twice shows once.
    message["Message-ID"] = f"<{notification.event_id}@{sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Headrace-Event"] = notification.event_id
    message.set_content(_text(notification))
    return message


def address(text: str) -> str:
    """A plain mailbox such as ``ops@example.com``; ConfigError for everything else, also what could add a header."""
    if len(text) > ADDRESS_CHARS_MAX or not _ADDRESS.fullmatch(text):
        raise ConfigError(
            f"{text[:ADDRESS_CHARS_MAX]!r} is no mailbox; write name@host, without a display name"
        )
    return text


def _text(notification: Notification) -> str:
    lines = [f"job: {notification.job_id}", f"event: {notification.type}"]
    lines += [f"{name}: {_line(notification.data[name])}" for name in _TOLD if notification.data.get(name)]
    return "\n".join(lines) + "\n"


def _line(value: object) -> str:
    """A value on one line: what a model said must not look like lines of ours."""
    return " ".join(str(value).split())[:_LINE_CHARS_MAX]
