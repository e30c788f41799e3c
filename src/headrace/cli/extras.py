"""The extras of whole commands, checked before a command starts anything.

Each adapter module of an optional dependency reports its own extra when it is imported. A command that
needs several of them would report one after the other, each after another installation.
"""

from importlib.util import find_spec
from typing import Any, Final

from headrace.core.errors import MissingExtraError

_JOBS: Final = ("sqlalchemy", "fastapi", "uvicorn", "httptools", "uvloop", "httpx", "httpcore")
_SERVE: Final = ("grpc", "google.protobuf", "uvicorn", "httptools", "uvloop", "prometheus_client", "aiohttp")
PACKAGES: Final = {
    "jobs": _JOBS,
    "serve": _SERVE,
    "up": tuple(dict.fromkeys((*_SERVE, *_JOBS))),
    "postgres": (*_JOBS, "psycopg"),
    "redis": ("redis",),
    "rabbitmq": ("pika",),
    "aws": ("boto3",),
}
"""The packages that headrace imports by the extra that installs them."""
_BROKERS: Final = {
    "redis": "redis",
    "rediss": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "sqs": "aws",
}


def require_extras(needed_for: str, *extras: str, hint: str = "") -> None:
    """Raise one MissingExtraError that names all of the extras whose packages are not installed."""
    missing = [extra for extra in extras if not all(map(_is_installed, PACKAGES[extra]))]
    if missing:
        raise MissingExtraError(",".join(missing), needed_for, hint=hint)


def job_extras(params: dict[str, Any], base: str = "jobs") -> list[str]:
    """Return the extras of a command with the ledger and the wakeup broker of its options.

    `base` is left out if another extra includes it.
    """
    ledger: str = params["ledger"] or ""
    dispatcher: str = params["dispatcher"]
    extras = [base]
    if ledger.startswith("postgres"):
        extras = ["postgres"] if base == "jobs" else [base, "postgres"]
    broker = _BROKERS.get(dispatcher.partition("://")[0])
    return [*extras, broker] if broker else extras


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
