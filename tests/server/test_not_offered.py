"""Paths of Triton's extensions that are refused with a reason, and none beside them."""

import pytest

from headrace.server.not_offered import not_offered


@pytest.mark.parametrize(
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
def test_a_reason_for_each(path, says):
    assert says in not_offered(path)


@pytest.mark.parametrize(
    "path",
    ["/", "/v2", "/v2/models/trace/setting/x", "/v2/logging/x", "/v3/logging", "/v2/systemsharedmemory"],
)
def test_no_reason_for_other_paths(path):
    assert not_offered(path) == ""
