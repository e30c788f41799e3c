"""E-mail to real SMTP servers on loopback: plain, STARTTLS, TLS, logins and refusals."""

import ssl

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.notify import Delivered, EmailTarget, Notification, Refused, RetryLater, WebhookTarget
from headrace.jobs.notify.notifiers import EmailNotifier, SmtpSettings, encode_email, require_mailbox
from servers.receiver import free_port

NOTIFICATION = Notification(
    "evt_1",
    "job.failed",
    "job-1",
    1_700_000_000_123,
    {"reason": "row 3\r\njob: another\n.\n", "output_uri": "s3://b/out", "model": "chürn"},
)
TO = EmailTarget("mail", ("ops@b.example",))


class Inbox:
    """An SMTP handler with scripted replies. `mails` are (sender, recipients, bytes)."""

    def __init__(self):
        self.mails = []
        self.recipient_replies = {}
        self.data_reply = "250 OK"

    async def handle_RCPT(self, server, session, envelope, require_mailbox, options):
        reply = self.recipient_replies.get(require_mailbox, "250 OK")
        if reply.startswith("2"):
            envelope.rcpt_tos.append(require_mailbox)
        return reply

    async def handle_DATA(self, server, session, envelope):
        if self.data_reply.startswith("2"):
            self.mails.append((envelope.mail_from, envelope.rcpt_tos, envelope.content))
        return self.data_reply


@pytest.fixture
def inbox():
    return Inbox()


@pytest.fixture
def serve(inbox):
    running = []

    def start(**options):
        controller = Controller(inbox, hostname="127.0.0.1", port=free_port(), **options)
        controller.start()
        running.append(controller)
        return controller.port

    yield start
    for controller in running:
        controller.stop(no_assert=True)


@pytest.fixture(scope="module")
def ca():
    return trustme.CA()


@pytest.fixture
def tls(ca):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def trust(ca):
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


def plain(port, **more):
    return SmtpSettings(
        "127.0.0.1", "headrace@a.example", port, **{"security": "none", "timeout_s": 5, **more}
    )


def test_notification_is_a_short_text_with_references(serve, inbox):
    answer = EmailNotifier(plain(serve())).send(
        NOTIFICATION, EmailTarget("m", ("ops@b.example", "me@c.example"))
    )
    assert answer == Delivered("mailed to 2 of 2")
    ((sender, recipients, content),) = inbox.mails
    assert (sender, recipients) == ("headrace@a.example", ["ops@b.example", "me@c.example"])
    for line in (
        b"From: headrace@a.example",
        b"To: ops@b.example, me@c.example",
        b"Subject: job.failed: job-1",
        b"Message-ID: <evt_1@a.example>",
        b"Auto-Submitted: auto-generated",
        b"output_uri: s3://b/out",
    ):
        assert line in content.splitlines()


def test_model_text_cannot_forge_a_line():
    text = encode_email(NOTIFICATION, "a@b.example", ("c@d.example",)).get_content()
    assert "reason: row 3 job: another .\n" in text
    assert text.count("\njob: ") + text.startswith("job: ") == 1


def test_starttls_with_a_user(serve, inbox, tls, trust):
    seen = []

    def authenticate(server, session, envelope, mechanism, data):
        seen.append((mechanism, data.login, data.password, session.ssl is not None))
        return AuthResult(success=data.password == b"hunter2")

    port = serve(tls_context=tls, require_starttls=True, authenticator=authenticate, auth_required=True)
    settings = plain(port, security="starttls", user="me", password="hunter2")
    assert EmailNotifier(settings, trust=trust).send(NOTIFICATION, TO) == Delivered("mailed to 1 of 1")
    assert [(login, password, secure) for _, login, password, secure in seen] == [(b"me", b"hunter2", True)]
    wrong = plain(port, security="starttls", user="me", password="hunter3")
    answer = EmailNotifier(wrong, trust=trust).send(NOTIFICATION, TO)
    assert isinstance(answer, RetryLater)
    assert "hunter3" not in answer.why + repr(wrong)


def test_tls_from_the_first_byte(serve, inbox, tls, trust):
    port = serve(ssl_context=tls)
    answer = EmailNotifier(plain(port, security="tls"), trust=trust).send(NOTIFICATION, TO)
    assert answer == Delivered("mailed to 1 of 1")


def test_missing_starttls_sends_nothing(serve, inbox, trust):
    """An attacker in the network can hide STARTTLS: no mail and no password is sent."""
    port = serve()
    answer = EmailNotifier(plain(port, security="starttls", user="me", password="x"), trust=trust).send(
        NOTIFICATION, TO
    )
    assert isinstance(answer, RetryLater)
    assert inbox.mails == []


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_untrusted_certificate_gets_nothing(serve, inbox, tls, security):
    port = serve(tls_context=tls) if security == "starttls" else serve(ssl_context=tls)
    assert isinstance(EmailNotifier(plain(port, security=security)).send(NOTIFICATION, TO), RetryLater)
    assert inbox.mails == []


@pytest.mark.parametrize(("reply", "kind"), [("550 no such box", Refused), ("450 later", RetryLater)])
def test_refused_mailbox_is_refused_or_retried_by_its_code(serve, inbox, reply, kind):
    inbox.recipient_replies["ops@b.example"] = reply
    answer = EmailNotifier(plain(serve())).send(NOTIFICATION, TO)
    assert isinstance(answer, kind)
    assert "no such box" not in answer.why


def test_one_accepted_mailbox_of_two_is_a_delivery(serve, inbox):
    inbox.recipient_replies["gone@b.example"] = "550 no such box"
    answer = EmailNotifier(plain(serve())).send(
        NOTIFICATION, EmailTarget("m", ("ops@b.example", "gone@b.example"))
    )
    assert answer == Delivered("mailed to 1 of 2")


@pytest.mark.parametrize(("reply", "kind"), [("554 spam", Refused), ("451 later", RetryLater)])
def test_refused_message_is_refused_or_retried_by_its_code(serve, inbox, reply, kind):
    inbox.data_reply = reply
    assert isinstance(EmailNotifier(plain(serve())).send(NOTIFICATION, TO), kind)


def test_unavailable_server_is_retried():
    assert isinstance(EmailNotifier(plain(free_port())).send(NOTIFICATION, TO), RetryLater)


@for_each(
    "text",
    [
        "",
        "ops",
        "ops@",
        "@b.example",
        "ops@b.example\r\nBcc: all@b.example",
        "ops@b.example\nX: y",
        "ops@b.example\n",
        "Ops <ops@b.example>",
        "a@b.example, c@d.example",
        "a@b@c.example",
        "a b@c.example",
        '"a b"@c.example',
        "öps@b.example",
        "ops@b..example",
        "ops@-b.example",
        "-" * 250 + "@b.example",
    ],
)
def test_invalid_mailbox_is_refused(text):
    with pytest.raises(ConfigError):
        require_mailbox(text)
    assert isinstance(EmailNotifier(plain(1)).send(NOTIFICATION, EmailTarget("m", (text,))), Refused)


def test_invalid_targets_are_refused():
    notifier = EmailNotifier(plain(1))
    assert isinstance(notifier.send(NOTIFICATION, EmailTarget("m", ())), Refused)
    assert isinstance(notifier.send(NOTIFICATION, EmailTarget("m", ("a@b.example",) * 21)), Refused)
    assert isinstance(notifier.send(NOTIFICATION, WebhookTarget("h", "https://h/")), Refused)


@for_each("wrong", [{"user": "me"}, {"security": "ssl"}, {"sender": "a\r\nb@c.example"}])
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        SmtpSettings(**{"host": "h", "sender": "a@b.example", "security": "none", **wrong})
