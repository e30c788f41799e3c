"""Routes of Triton's REST extensions that headrace lacks. They respond with a reason, not 404."""

import re
from typing import Final

_SHARED_MEMORY: Final = "shared memory is not offered: send the tensors in the request, as binary data"
_TRACE: Final = "trace settings cannot be changed over the network"
_LOGGING: Final = "log settings cannot be changed over the network"

_REASONS: Final = (
    (
        re.compile(r"/v2/(system|cuda)sharedmemory(/region/[^/]+)?/(status|register|unregister)/?"),
        _SHARED_MEMORY,
    ),
    (re.compile(r"/v2(/models/[^/]+)?/trace/setting/?"), _TRACE),
    (re.compile(r"/v2/logging/?"), _LOGGING),
)


def unsupported_reason(path: str) -> str:
    """Return the reason for an unsupported path, or an empty string for all other paths."""
    return next((why for pattern, why in _REASONS if pattern.fullmatch(path)), "")
