"""Job ledgers in SQL: one implementation for SQLite and PostgreSQL.

`open_ledger` opens the one at a URL. The statements are files in ``queries/``.
"""

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.jobs.ledgers.sql import SqlJobLedger

_POSTGRES: Final = ("postgresql", "postgres", "postgresql+psycopg")


def open_ledger(url: str, *, connections_max: int | None = None) -> "SqlJobLedger":
    """Return the ledger at `url`, not started.

    `connections_max` limits the connections of a ledger in PostgreSQL for transactions.

    The URL is ``sqlite:///jobs.db`` (``sqlite:////var/jobs.db`` for an absolute path), a plain
    path, or ``postgresql://user:password@host/database``, with libpq's options after ``?``.

    Raise ConfigError for anything else, and MissingExtraError if a required package is not
    installed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _sqlite(url, url)
    if scheme in _POSTGRES:
        return _postgres(url, connections_max)
    if scheme == "sqlite":
        if not rest.startswith("/"):
            raise ConfigError(f"{url}: an SQLite ledger needs a path, as in sqlite:///jobs.db")
        return _sqlite(url, rest[1:])
    raise ConfigError(
        f"{scheme}:// is not supported for job ledgers: "
        "give a path, sqlite:///PATH, or postgresql://HOST/DATABASE"
    )


def _sqlite(url: str, path: str) -> "SqlJobLedger":
    if not path or path.startswith(":memory:") or "?" in path or path.endswith("/"):
        raise ConfigError(f"{url!r}: a job ledger in SQLite needs a file, as in sqlite:///jobs.db")
    from headrace.jobs.ledgers.sqlite import SqliteJobLedger  # noqa: PLC0415 - imported on demand

    return SqliteJobLedger(path)


def _postgres(url: str, connections_max: int | None) -> "SqlJobLedger":
    if not urlsplit(url).path.strip("/"):
        raise ConfigError(
            "a job ledger in PostgreSQL needs a database's name, as in postgresql://host/database"
        )
    from headrace.jobs.ledgers.postgres import PostgresJobLedger  # noqa: PLC0415 - imported on demand

    return PostgresJobLedger(url, connections_max=connections_max)
