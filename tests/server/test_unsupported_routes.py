"""Paths of Triton's extensions are refused with a reason, and no other paths."""

from cases import for_each
from headrace.server.unsupported_routes import unsupported_reason


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
def test_unsupported_paths_have_a_reason(path, says):
    assert says in unsupported_reason(path)


@for_each(
    "path",
    ["/", "/v2", "/v2/models/trace/setting/x", "/v2/logging/x", "/v3/logging", "/v2/systemsharedmemory"],
)
def test_other_paths_have_no_reason(path):
    assert unsupported_reason(path) == ""
