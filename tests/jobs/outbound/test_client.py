"""The guarded client against real servers on loopback: what it reaches, what it refuses, and when it gives up."""

import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from headrace.core.errors import RefusedAddressError
from headrace.jobs.outbound.addresses import network
from headrace.jobs.outbound.client import (
    ANSWER_BYTES_MAX,
    OutboundClient,
    OutboundFault,
    OutboundTimeouts,
    UntrustedFault,
    system_resolve,
)
from headrace.jobs.outbound.urls import OutboundPolicy
from servers.receiver import Receiver, Reply, free_port

LOOPBACK = (network("127.0.0.1/32"),)
QUICK = OutboundTimeouts(connect_s=0.5, read_s=0.3, total_s=0.6)
NAME = "hooks.example"


def policy(port: int, networks=LOOPBACK) -> OutboundPolicy:
    return OutboundPolicy(plain_http=True, ports=frozenset({port}), networks=networks)


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def make():
    """Clients that are closed at the end."""
    made = []

    def client(port, *, networks=LOOPBACK, resolve=lambda host, port: ["127.0.0.1"], **more):
        made.append(OutboundClient(policy(port, networks), resolve=resolve, **more))
        return made[-1]

    yield client
    for one in made:
        one.close()


def test_a_request_arrives_as_it_was_meant_and_its_answer_comes_back(receiver, make):
    receiver.reply = Reply(201, {"X-Said": "yes"}, b"thanks")
    answer = make(receiver.port).send(
        "POST", f"http://{NAME}:{receiver.port}/hook?a=%20b", headers={"X-Mine": "1"}, body=b"{}"
    )
    assert (answer.status, answer.headers["x-said"], answer.body, answer.whole) == (
        201,
        "yes",
        b"thanks",
        True,
    )
    (request,) = receiver.requests
    assert (request.method, request.path, request.body) == ("POST", "/hook?a=%20b", b"{}")
    assert request.headers["host"] == f"{NAME}:{receiver.port}"
    assert (request.headers["x-mine"], request.headers["content-length"]) == ("1", "2")


def test_an_address_that_is_not_public_is_never_connected_to(receiver, make):
    client = make(receiver.port, networks=())
    with pytest.raises(RefusedAddressError) as refused:
        client.send("GET", f"http://{NAME}:{receiver.port}/")
    # Whoever asks must not learn what an inner name leads to.
    assert "127.0.0.1" not in str(refused.value)
    with pytest.raises(RefusedAddressError):
        client.send("GET", receiver.url)
    assert receiver.requests == []


def test_localhost_is_refused_by_the_system_s_own_resolver(receiver):
    assert system_resolve("localhost", 80)
    with (
        OutboundClient(policy(receiver.port, ())) as client,
        pytest.raises(RefusedAddressError),
    ):
        client.send("GET", f"http://localhost:{receiver.port}/")
    assert receiver.requests == []


def test_a_name_that_changes_its_answer_is_looked_up_once_and_reached_where_it_was_judged(make):
    """DNS rebinding: first an address that passes (another loopback address plays the public one), then the inner one."""
    port = free_port()
    answers = [["127.0.0.2"], ["127.0.0.1"], ["127.0.0.1"]]
    asked = []

    def resolve(host, port):
        asked.append(host)
        return answers[len(asked) - 1]

    with Receiver(host="127.0.0.2", port=port) as public, Receiver(host="127.0.0.1", port=port) as inner:
        client = make(port, networks=(network("127.0.0.2/32"),), resolve=resolve)
        assert client.send("GET", f"http://{NAME}:{port}/").status == 200
        assert asked == [NAME]
        assert (len(public.requests), len(inner.requests)) == (1, 0)
        with pytest.raises(RefusedAddressError):
            client.send("GET", f"http://{NAME}:{port}/")
        assert inner.requests == []


def test_of_several_addresses_only_those_that_pass_are_tried(receiver, make):
    client = make(receiver.port, resolve=lambda host, port: ["10.0.0.1", "127.0.0.9", "::1", "127.0.0.1"])
    assert client.send("GET", f"http://{NAME}:{receiver.port}/").status == 200


def test_the_next_address_is_tried_when_one_does_not_answer(receiver, make):
    both = (network("127.0.0.0/8"),)
    client = make(receiver.port, networks=both, resolve=lambda host, port: ["127.0.0.9", "127.0.0.1"])
    assert client.send("GET", f"http://{NAME}:{receiver.port}/").status == 200


def test_redirects_are_answers_and_are_not_followed(receiver, make):
    receiver.reply = Reply(302, {"Location": f"http://127.0.0.1:{receiver.port}/inner"})
    assert make(receiver.port).send("GET", receiver.url).status == 302
    assert [r.path for r in receiver.requests] == ["/hook"]


def test_proxies_and_netrc_of_the_environment_are_not_used(receiver, make, monkeypatch, tmp_path):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    (tmp_path / ".netrc").write_text("machine hooks.example login me password hunter2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    assert make(receiver.port).send("GET", f"http://{NAME}:{receiver.port}/").status == 200
    assert "authorization" not in receiver.requests[0].headers


def test_a_receiver_that_never_answers_costs_the_read_timeout(receiver, make):
    receiver.reply = Reply(never=True)
    began_s = time.monotonic()
    with pytest.raises(OutboundFault, match="in time"):
        make(receiver.port, timeouts=QUICK).send("GET", receiver.url)
    assert time.monotonic() - began_s < 2


def test_no_step_outlasts_the_total(receiver, make):
    receiver.reply = Reply(never=True)
    began_s = time.monotonic()
    with pytest.raises(OutboundFault):
        make(receiver.port, timeouts=OutboundTimeouts(5, 15, total_s=0.4)).send("GET", receiver.url)
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("reply", [Reply(drip_head_s=0.05), Reply(drip_s=0.05)], ids=["head", "body"])
def test_a_receiver_that_drips_costs_the_total_timeout_and_no_more(receiver, make, reply):
    receiver.reply = reply
    client = make(receiver.port, timeouts=QUICK)
    began_s = time.monotonic()
    if reply.drip_head_s:
        with pytest.raises(OutboundFault):
            client.send("GET", receiver.url)
    else:
        # Its status had come: that counts.
        answer = client.send("GET", receiver.url)
        assert (answer.status, answer.whole) == (200, False)
        assert 0 < len(answer.body) < 100
    assert 0.5 < time.monotonic() - began_s < 2


def test_a_receiver_that_takes_nothing_costs_the_timeout(make):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client = make(deaf.getsockname()[1], timeouts=QUICK)
        with pytest.raises(OutboundFault):
            client.send("POST", f"http://127.0.0.1:{deaf.getsockname()[1]}/", body=bytes(50 << 20))


def test_an_endless_answer_is_left_at_its_bound(receiver, make):
    receiver.reply = Reply(endless=True, body=bytes(1 << 16))
    answer = make(receiver.port).send("GET", receiver.url)
    assert (answer.status, len(answer.body), answer.whole) == (200, ANSWER_BYTES_MAX, False)
    assert receiver.sent_bytes < 64 << 20


def test_what_is_compressed_stays_so(receiver, make):
    receiver.reply = Reply(headers={"Content-Encoding": "gzip"}, body=b"\x1f\x8bnot really")
    assert make(receiver.port).send("GET", receiver.url).body == b"\x1f\x8bnot really"
    assert receiver.requests[0].headers["accept-encoding"] == "identity"


def test_a_connection_that_breaks_or_is_refused_is_a_fault(receiver, make):
    receiver.reply = Reply(cut=True)
    with pytest.raises(OutboundFault, match="broke"):
        make(receiver.port).send("GET", receiver.url)
    closed = free_port()
    with pytest.raises(OutboundFault, match="could not be reached"):
        make(closed).send("GET", f"http://127.0.0.1:{closed}/")


def test_an_answer_that_is_no_http_is_a_fault(make):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            sock, _ = server.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(OutboundFault) as fault:
            make(port).send("GET", f"http://127.0.0.1:{port}/")
        thread.join()
    # What inner services say is not for those who named them.
    assert "SSH" not in str(fault.value)


def test_a_name_that_is_unknown_or_has_no_address_is_a_fault(make):
    def unknown(host, port):
        raise socket.gaierror(-2, "Name or service not known")

    for resolve in (unknown, lambda host, port: []):
        with pytest.raises(OutboundFault):
            make(443, resolve=resolve).send("GET", f"https://{NAME}/")


def test_a_resolver_that_hangs_costs_the_connect_timeout(make):
    released = threading.Event()

    def hang(host, port):
        released.wait(20)
        return ["127.0.0.1"]

    began_s = time.monotonic()
    with pytest.raises(OutboundFault, match="not resolved within"):
        make(443, resolve=hang, timeouts=QUICK).send("GET", f"https://{NAME}/")
    assert time.monotonic() - began_s < 2
    released.set()


def test_a_closed_client_says_so(make):
    client = make(443)
    client.close()
    client.close()
    with pytest.raises(OutboundFault, match="closed"):
        client.send("GET", f"https://{NAME}/")


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
def test_a_header_cannot_begin_another(receiver, make, value):
    with pytest.raises(OutboundFault):
        make(receiver.port).send("GET", receiver.url, headers={"X-Mine": value})
    assert receiver.requests == []


# TLS.


@pytest.fixture(scope="module")
def ca():
    return trustme.CA()


def tls(cert: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert.configure_cert(context)
    return context


def trusting(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


def test_over_tls_the_name_is_kept_for_the_certificate_and_the_host(ca, make):
    asked = []
    context = tls(ca.issue_cert(NAME))
    context.sni_callback = lambda sock, name, context: asked.append(name)
    with Receiver(tls=context) as receiver:
        client = make(receiver.port, trust=trusting(ca))
        assert client.send("POST", f"https://{NAME}:{receiver.port}/", body=b"{}").status == 200
        assert asked == [NAME]
        assert receiver.requests[0].headers["host"] == f"{NAME}:{receiver.port}"


@pytest.mark.parametrize("reply", [Reply(never=True), Reply(drip_head_s=0.05)], ids=["never", "drips"])
def test_over_tls_the_limits_hold_too(ca, make, reply):
    with Receiver(tls=tls(ca.issue_cert(NAME))) as receiver:
        receiver.reply = reply
        client = make(receiver.port, trust=trusting(ca), timeouts=QUICK)
        began_s = time.monotonic()
        with pytest.raises(OutboundFault):
            client.send("GET", f"https://{NAME}:{receiver.port}/")
        assert time.monotonic() - began_s < 2


def test_an_address_by_number_needs_a_certificate_for_that_number(ca, make):
    with Receiver(tls=tls(ca.issue_cert("127.0.0.1"))) as receiver:
        client = make(receiver.port, trust=trusting(ca))
        assert client.send("GET", f"https://127.0.0.1:{receiver.port}/").status == 200


@pytest.mark.parametrize("case", ["another name", "expired", "unknown"])
def test_a_certificate_that_cannot_be_trusted_ends_it(ca, make, case):
    past = datetime.now(UTC) - timedelta(days=1)
    certs = {
        "another name": lambda: ca.issue_cert("other.example"),
        "expired": lambda: ca.issue_cert(NAME, not_after=past, not_before=past - timedelta(days=1)),
        "unknown": lambda: trustme.CA().issue_cert(NAME),
    }
    with Receiver(tls=tls(certs[case]())) as receiver:
        client = make(receiver.port, trust=trusting(ca))
        with pytest.raises(UntrustedFault):
            client.send("GET", f"https://{NAME}:{receiver.port}/")
        assert receiver.requests == []


def test_a_server_without_tls_ends_it(receiver, make):
    with pytest.raises(OutboundFault):
        make(receiver.port, timeouts=QUICK).send("GET", f"https://127.0.0.1:{receiver.port}/")


def test_a_server_that_hangs_in_its_handshake_costs_the_timeout(make):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began_s = time.monotonic()
        with pytest.raises(OutboundFault):
            make(port, timeouts=QUICK).send("GET", f"https://{NAME}:{port}/")
        assert time.monotonic() - began_s < 2
