"""The standard library as `HttpStore`'s door: any status is an answer, and redirects go to HTTP alone."""

import pytest

from headrace.core.errors import StorageError
from headrace.storage.http_door import UrllibDoor
from headrace.storage.retry import TransientFault
from servers.http_files import CUT_NOW, Fault


@pytest.fixture
def door():
    return UrllibDoor(timeout_s=0.3)


@pytest.mark.parametrize("status", [200, 204, 404, 416, 503])
def test_every_status_is_an_answer_with_headers_in_lower_case(http_files, door, status):
    http_files.faults = [
        Fault(status=status, headers={"X-Said": "yes"}, body=b"" if status == 204 else b"why")
    ]
    with door.open("GET", f"{http_files.url}/k", {"X-Mine": "1"}) as answer:
        assert (answer.status, answer.headers["x-said"]) == (status, "yes")
        assert b"".join(answer.pieces) == (b"" if status == 204 else b"why")
    assert http_files.requests[0][2]["x-mine"] == "1"


def test_redirects_are_followed_to_http_alone(http_files, door):
    http_files.objects["/there"] = b"here"
    http_files.faults = [Fault(status=302, headers={"Location": "/there"})]
    with door.open("GET", f"{http_files.url}/k", {}) as answer:
        assert b"".join(answer.pieces) == b"here"
    http_files.faults = [Fault(status=302, headers={"Location": "file:///etc/passwd"})]
    with door.open("GET", f"{http_files.url}/k", {}) as answer:
        assert answer.status == 302


def test_what_may_pass_is_a_transient_fault(http_files, door):
    http_files.objects["/k"] = bytes(5_000_000)
    http_files.faults = [Fault(hang=True), Fault(cut_at=10)]
    with pytest.raises(TransientFault), door.open("GET", f"{http_files.url}/k", {}):
        pass
    with pytest.raises(TransientFault), door.open("GET", "http://127.0.0.1:9/k", {}):
        pass
    http_files.faults = [CUT_NOW]
    # A body that is cut ends early, and who knows its length notices (see test_http.py).
    with door.open("GET", f"{http_files.url}/k", {}) as answer:
        assert b"".join(answer.pieces) == b""


def test_a_redirect_to_what_is_no_address_is_for_good(http_files, door):
    http_files.faults = [Fault(status=302, headers={"Location": "http://[::1/k"})]
    with pytest.raises(StorageError, match="no address"), door.open("GET", f"{http_files.url}/k", {}):
        pass
