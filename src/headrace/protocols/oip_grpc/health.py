"""Messages of `grpc.health.v1.Health`."""

from collections.abc import Mapping
from typing import Any, Final

from headrace.protocols.oip_grpc.messages import HEALTH, message_class

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3

HealthCheckRequest: Any = message_class("HealthCheckRequest", package=HEALTH)
_RESPONSE: Any = message_class("HealthCheckResponse", package=HEALTH)
_LIST: Any = message_class("HealthListResponse", package=HEALTH)


def encode_health(status: int) -> bytes:
    """Return the bytes of a HealthCheckResponse."""
    return _RESPONSE(status=status).SerializeToString()


def encode_health_list(statuses: Mapping[str, int]) -> bytes:
    """Return the bytes of a HealthListResponse for statuses by service name."""
    message = _LIST()
    for name, status in statuses.items():
        message.statuses[name].status = status
    return message.SerializeToString()
