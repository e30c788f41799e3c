"""The extras of whole commands, checked before a command starts anything.

Each adapter module of an optional dependency reports its own extra when it is imported. A command that
needs several of them would report one after the other, each after another installation.
"""

from importlib.util import find_spec
from typing import Any, Final

from headrace.core.address import REDIS_SCHEMES
from headrace.core.errors import MissingExtraError

_JOBS: Final = (
    "sqlalchemy",
    "uvicorn",
    "httptools",
    "uvloop",
    "python_multipart",
    "httpx",
    "httpcore",
)
_SERVE: Final = (
    "grpc",
    "google.protobuf",
    "uvicorn",
    "httptools",
    "uvloop",
    "prometheus_client",
    "python_multipart",
    "aiohttp",
)
PACKAGES: Final = {
    "jobs": _JOBS,
    "serve": _SERVE,
    "up": tuple(dict.fromkeys((*_SERVE, *_JOBS))),
    "postgres": (*_JOBS, "psycopg"),
    "http2": ("zttp",),
    "redis": ("redis",),
    "rabbitmq": ("pika",),
    "aws": ("boto3",),
}
"""The packages that headrace imports by the extra that installs them."""
_BROKERS: Final = {
    **dict.fromkeys(REDIS_SCHEMES, "redis"),
    **dict.fromkeys(("amqp", "amqps"), "rabbitmq"),
    "sqs": "aws",
}


def require_extras(needed_for: str, *extras: str, hint: str = "") -> None:
    """Raise one MissingExtraError that names all of the extras whose packages are not installed."""
    missing = [extra for extra in extras if not all(map(_is_installed, PACKAGES[extra]))]
    if missing:
        raise MissingExtraError(",".join(missing), needed_for, hint=hint)


def job_extras(params: dict[str, Any], base: str = "jobs") -> list[str]:
    """Return the extras of a command with the ledger, wakeup broker and event queue of its options.

    `base` is left out if another extra includes it.
    """
    ledger: str = params["ledger"] or ""
    dispatcher: str = params["dispatcher"] or ""
    extras = [base]
    if ledger.startswith("postgres"):
        extras = ["postgres"] if base == "jobs" else [base, "postgres"]
    if (scheme := dispatcher.partition("://")[0]) in _BROKERS:
        extras.append(_BROKERS[scheme])
    if params.get("events_queue"):
        extras.append("aws")
    return list(dict.fromkeys(extras))


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
