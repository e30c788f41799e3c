"""The standard library as the transport of `HttpStore`."""

import pytest

from cases import for_each
from headrace.core.clock import TransientFault
from headrace.core.errors import StorageError
from headrace.storage.http import UrllibTransport
from servers.http_files import CUT_NOW, Fault


@pytest.fixture
def transport():
    return UrllibTransport(timeout_s=0.3)


@for_each("status", [200, 204, 404, 416, 503])
def test_any_status_is_a_response_with_lower_case_headers(http_files, transport, status):
    http_files.faults = [
        Fault(status=status, headers={"X-Said": "yes"}, body=b"" if status == 204 else b"why")
    ]
    with transport.open("GET", f"{http_files.url}/k", {"X-Mine": "1"}) as response:
        assert (response.status, response.headers["x-said"]) == (status, "yes")
        assert b"".join(response.chunks) == (b"" if status == 204 else b"why")
    assert http_files.requests[-1][2]["x-mine"] == "1"


def test_redirect_to_file_is_not_followed(http_files, transport):
    http_files.objects["/there"] = b"here"
    http_files.faults = [Fault(status=302, headers={"Location": "/there"})]
    with transport.open("GET", f"{http_files.url}/k", {}) as response:
        assert b"".join(response.chunks) == b"here"
    http_files.faults = [Fault(status=302, headers={"Location": "file:///etc/passwd"})]
    with transport.open("GET", f"{http_files.url}/k", {}) as response:
        assert response.status == 302


def test_network_failures_are_transient_faults(http_files, transport):
    http_files.objects["/k"] = bytes(5_000_000)
    http_files.faults = [Fault(hang=True), Fault(cut_at=10)]
    with pytest.raises(TransientFault), transport.open("GET", f"{http_files.url}/k", {}):
        pass
    with pytest.raises(TransientFault), transport.open("GET", "http://127.0.0.1:9/k", {}):
        pass
    http_files.faults = [CUT_NOW]
    # A truncated body ends early; `HttpStore` compares its length (see test_http.py).
    with transport.open("GET", f"{http_files.url}/k", {}) as response:
        assert b"".join(response.chunks) == b""


def test_redirect_to_invalid_url_is_permanent(http_files, transport):
    http_files.faults = [Fault(status=302, headers={"Location": "http://[::1/k"})]
    with pytest.raises(StorageError, match="is invalid"), transport.open("GET", f"{http_files.url}/k", {}):
        pass
