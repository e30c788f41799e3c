"""The outbound client against real servers on loopback: addresses, timeouts and TLS."""

import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from headrace.core.errors import RefusedAddressError
from headrace.jobs.outbound import (
    OUTBOUND_RESPONSE_BYTES_MAX,
    OutboundFault,
    OutboundPolicy,
    OutboundTimeouts,
    UntrustedFault,
    parse_network,
)
from headrace.jobs.outbound.client import OutboundClient, system_resolve
from servers.receiver import Receiver, Reply, free_port

LOOPBACK = (parse_network("127.0.0.1/32"),)
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
    """Return a function that makes clients; close the clients at the end."""
    made = []

    def client(port, *, networks=LOOPBACK, resolve=lambda host, port: ["127.0.0.1"], **more):
        made.append(OutboundClient(policy(port, networks), resolve=resolve, **more))
        return made[-1]

    yield client
    for one in made:
        one.close()


def test_request_and_response_are_unchanged(receiver, make):
    receiver.reply = Reply(201, {"X-Said": "yes"}, b"thanks")
    answer = make(receiver.port).send(
        "POST", f"http://{NAME}:{receiver.port}/hook?a=%20b", headers={"X-Mine": "1"}, body=b"{}"
    )
    assert (answer.status, answer.headers["x-said"], answer.body, answer.complete) == (
        201,
        "yes",
        b"thanks",
        True,
    )
    (request,) = receiver.requests
    assert (request.method, request.path, request.body) == ("POST", "/hook?a=%20b", b"{}")
    assert request.headers["host"] == f"{NAME}:{receiver.port}"
    assert (request.headers["x-mine"], request.headers["content-length"]) == ("1", "2")


def test_non_public_address_is_never_connected_to(receiver, make):
    client = make(receiver.port, networks=())
    with pytest.raises(RefusedAddressError) as refused:
        client.send("GET", f"http://{NAME}:{receiver.port}/")
    # The message must not reveal the address of an internal name.
    assert "127.0.0.1" not in str(refused.value)
    with pytest.raises(RefusedAddressError):
        client.send("GET", receiver.url)
    assert receiver.requests == []


def test_localhost_of_the_system_resolver_is_refused(receiver):
    assert system_resolve("localhost", 80)
    with (
        OutboundClient(policy(receiver.port, ())) as client,
        pytest.raises(RefusedAddressError),
    ):
        client.send("GET", f"http://localhost:{receiver.port}/")
    assert receiver.requests == []


def test_rebinding_name_is_resolved_once(make):
    """DNS rebinding: a name resolves to a permitted address first, then to an internal one.

    Another loopback address takes the place of the public address.
    """
    port = free_port()
    answers = [["127.0.0.2"], ["127.0.0.1"], ["127.0.0.1"]]
    resolved = []

    def resolve(host, port):
        resolved.append(host)
        return answers[len(resolved) - 1]

    with Receiver(host="127.0.0.2", port=port) as public, Receiver(host="127.0.0.1", port=port) as inner:
        client = make(port, networks=(parse_network("127.0.0.2/32"),), resolve=resolve)
        assert client.send("GET", f"http://{NAME}:{port}/").status == 200
        assert resolved == [NAME]
        assert (len(public.requests), len(inner.requests)) == (1, 0)
        with pytest.raises(RefusedAddressError):
            client.send("GET", f"http://{NAME}:{port}/")
        assert inner.requests == []


def test_only_permitted_addresses_are_tried(receiver, make):
    client = make(receiver.port, resolve=lambda host, port: ["10.0.0.1", "127.0.0.9", "::1", "127.0.0.1"])
    assert client.send("GET", f"http://{NAME}:{receiver.port}/").status == 200


def test_next_address_is_tried_after_a_failure(receiver, make):
    both = (parse_network("127.0.0.0/8"),)
    client = make(receiver.port, networks=both, resolve=lambda host, port: ["127.0.0.9", "127.0.0.1"])
    assert client.send("GET", f"http://{NAME}:{receiver.port}/").status == 200


def test_redirects_are_not_followed(receiver, make):
    receiver.reply = Reply(302, {"Location": f"http://127.0.0.1:{receiver.port}/inner"})
    assert make(receiver.port).send("GET", receiver.url).status == 302
    assert [r.path for r in receiver.requests] == ["/hook"]


def test_proxies_and_netrc_are_ignored(receiver, make, monkeypatch, tmp_path):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    (tmp_path / ".netrc").write_text("machine hooks.example login me password hunter2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    assert make(receiver.port).send("GET", f"http://{NAME}:{receiver.port}/").status == 200
    assert "authorization" not in receiver.requests[0].headers


def test_silent_receiver_costs_the_read_timeout(receiver, make):
    receiver.reply = Reply(never=True)
    began_s = time.monotonic()
    with pytest.raises(OutboundFault, match="in time"):
        make(receiver.port, timeouts=QUICK).send("GET", receiver.url)
    assert time.monotonic() - began_s < 2


def test_no_step_exceeds_the_total_timeout(receiver, make):
    receiver.reply = Reply(never=True)
    began_s = time.monotonic()
    with pytest.raises(OutboundFault):
        make(receiver.port, timeouts=OutboundTimeouts(5, 15, total_s=0.4)).send("GET", receiver.url)
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("reply", [Reply(drip_head_s=0.05), Reply(drip_s=0.05)], ids=["head", "body"])
def test_dripping_receiver_costs_the_total_timeout(receiver, make, reply):
    receiver.reply = reply
    client = make(receiver.port, timeouts=QUICK)
    began_s = time.monotonic()
    if reply.drip_head_s:
        with pytest.raises(OutboundFault):
            client.send("GET", receiver.url)
    else:
        # The status arrived in time, so the response counts.
        answer = client.send("GET", receiver.url)
        assert (answer.status, answer.complete) == (200, False)
        assert 0 < len(answer.body) < 100
    assert 0.5 < time.monotonic() - began_s < 2


def test_receiver_that_does_not_read_costs_the_timeout(make):
    with socket.create_server(("127.0.0.1", 0)) as unread:
        client = make(unread.getsockname()[1], timeouts=QUICK)
        with pytest.raises(OutboundFault):
            client.send("POST", f"http://127.0.0.1:{unread.getsockname()[1]}/", body=bytes(50 << 20))


def test_endless_response_is_cut_at_its_limit(receiver, make):
    receiver.reply = Reply(endless=True, body=bytes(1 << 16))
    answer = make(receiver.port).send("GET", receiver.url)
    assert (answer.status, len(answer.body), answer.complete) == (200, OUTBOUND_RESPONSE_BYTES_MAX, False)
    assert receiver.sent_bytes < 64 << 20


def test_compressed_body_stays_compressed(receiver, make):
    receiver.reply = Reply(headers={"Content-Encoding": "gzip"}, body=b"\x1f\x8bnot really")
    assert make(receiver.port).send("GET", receiver.url).body == b"\x1f\x8bnot really"
    assert receiver.requests[0].headers["accept-encoding"] == "identity"


def test_broken_or_refused_connection_is_a_fault(receiver, make):
    receiver.reply = Reply(cut=True)
    with pytest.raises(OutboundFault, match="broke"):
        make(receiver.port).send("GET", receiver.url)
    closed = free_port()
    with pytest.raises(OutboundFault, match="could not be reached"):
        make(closed).send("GET", f"http://127.0.0.1:{closed}/")


def test_non_http_response_is_a_fault(make):
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
    # Submitters name the server, and must not see the responses of internal services.
    assert "SSH" not in str(fault.value)


def test_unresolvable_name_is_a_fault(make):
    def unknown(host, port):
        raise socket.gaierror(-2, "Name or service not known")

    for resolve in (unknown, lambda host, port: []):
        with pytest.raises(OutboundFault):
            make(443, resolve=resolve).send("GET", f"https://{NAME}/")


def test_hanging_resolver_costs_the_connect_timeout(make):
    released = threading.Event()

    def hang(host, port):
        released.wait(20)
        return ["127.0.0.1"]

    began_s = time.monotonic()
    with pytest.raises(OutboundFault, match="not resolved within"):
        make(443, resolve=hang, timeouts=QUICK).send("GET", f"https://{NAME}/")
    assert time.monotonic() - began_s < 2
    released.set()


def test_closed_client_raises(make):
    client = make(443)
    client.close()
    client.close()
    with pytest.raises(OutboundFault, match="closed"):
        client.send("GET", f"https://{NAME}/")


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
def test_header_injection_is_refused(receiver, make, value):
    with pytest.raises(OutboundFault):
        make(receiver.port).send("GET", receiver.url, headers={"X-Mine": value})
    assert receiver.requests == []


# TLS


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


def test_tls_uses_the_name_for_certificate_and_host(ca, make):
    server_names = []
    context = tls(ca.issue_cert(NAME))
    context.sni_callback = lambda sock, name, context: server_names.append(name)
    with Receiver(tls=context) as receiver:
        client = make(receiver.port, trust=trusting(ca))
        assert client.send("POST", f"https://{NAME}:{receiver.port}/", body=b"{}").status == 200
        assert server_names == [NAME]
        assert receiver.requests[0].headers["host"] == f"{NAME}:{receiver.port}"


@pytest.mark.parametrize("reply", [Reply(never=True), Reply(drip_head_s=0.05)], ids=["never", "drips"])
def test_limits_hold_over_tls(ca, make, reply):
    with Receiver(tls=tls(ca.issue_cert(NAME))) as receiver:
        receiver.reply = reply
        client = make(receiver.port, trust=trusting(ca), timeouts=QUICK)
        began_s = time.monotonic()
        with pytest.raises(OutboundFault):
            client.send("GET", f"https://{NAME}:{receiver.port}/")
        assert time.monotonic() - began_s < 2


def test_literal_address_needs_a_certificate_for_it(ca, make):
    with Receiver(tls=tls(ca.issue_cert("127.0.0.1"))) as receiver:
        client = make(receiver.port, trust=trusting(ca))
        assert client.send("GET", f"https://127.0.0.1:{receiver.port}/").status == 200


@pytest.mark.parametrize("case", ["another name", "expired", "unknown"])
def test_untrusted_certificate_is_refused(ca, make, case):
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


def test_server_without_tls_is_refused(receiver, make):
    with pytest.raises(OutboundFault):
        make(receiver.port, timeouts=QUICK).send("GET", f"https://127.0.0.1:{receiver.port}/")


def test_hanging_handshake_costs_the_timeout(make):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began_s = time.monotonic()
        with pytest.raises(OutboundFault):
            make(port, timeouts=QUICK).send("GET", f"https://{NAME}:{port}/")
        assert time.monotonic() - began_s < 2
