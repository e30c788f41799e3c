"""Paths of Triton's extensions are refused with a reason, and no other paths."""

import pytest

from cases import for_each
from server.support import serving


@pytest.fixture(scope="module")
def server():
    with serving({}) as opened:
        yield opened


@for_each(
    ("path", "says"),
    [
        ("/v2/systemsharedmemory/status", "shared memory is not offered"),
        ("/v2/systemsharedmemory/region/a-name/register", "shared memory is not offered"),
        ("/v2/cudasharedmemory/region/a-name/unregister", "shared memory is not offered"),
        ("/v2/cudasharedmemory/unregister/", "shared memory is not offered"),
        ("/v2/trace/setting", "trace settings"),
        ("/v2/models/churn/trace/setting", "trace settings"),
        ("/v2/logging", "log settings"),
    ],
)
def test_unsupported_paths_have_a_reason(server, path, says):
    for response in (server.get(path), server.post(path)):
        assert response.status == 501
        assert says in response.error


@for_each("path", ["/v2/models/trace/setting/x", "/v2/logging/x", "/v3/logging", "/v2/systemsharedmemory"])
def test_other_paths_have_no_reason(server, path):
    assert server.get(path).status == 404
