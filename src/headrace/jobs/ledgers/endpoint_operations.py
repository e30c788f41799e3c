"""The operations on endpoints: each change adds a version, and the limit of running jobs follows it."""

from collections.abc import Sequence
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.access.endpoints import (
    VERSIONS_MAX,
    Endpoint,
    EndpointSettings,
    dump_endpoint_settings,
    load_endpoint_settings,
)
from headrace.jobs.lanes import ClaimLimit
from headrace.jobs.ledger import JobLedger
from headrace.jobs.ledgers.claims import write_limits
from headrace.jobs.ledgers.database import (
    DatabaseOperations,
    Transaction,
    read_statement,
    reading,
    writing,
)
from headrace.jobs.ledgers.rows import clean

_ENDPOINTS: Final = read_statement("endpoints")
_VERSIONS: Final = read_statement("endpoint_versions")
_INSERT: Final = read_statement("insert_endpoint")
_PRUNE: Final = read_statement("prune_endpoint")
_DELETE_LIMIT: Final = read_statement("delete_limit")
_TRIES_MAX: Final = 8


class EndpointOperations(DatabaseOperations, JobLedger):
    """The operations of a ledger on endpoints."""

    @override
    @reading
    def endpoints(self, transaction: Transaction) -> list[Endpoint]:
        return list(map(_endpoint_of, transaction.run(_ENDPOINTS)))

    @override
    @reading
    def endpoint_versions(self, transaction: Transaction, name: str) -> list[Endpoint]:
        return _read_versions(transaction, clean(name))

    @override
    @writing
    def set_endpoint(
        self, transaction: Transaction, name: str, settings: EndpointSettings, *, by: str = ""
    ) -> Endpoint:
        endpoint = _add_version(transaction, clean(name), settings, by)
        assert endpoint is not None, "a version with settings is added, or there is one"
        transaction.run(_DELETE_LIMIT, kind="endpoint", name=endpoint.name)
        if settings.running_max is not None:
            write_limits(transaction, [ClaimLimit("endpoint", endpoint.name, settings.running_max)])
        return endpoint

    @override
    @writing
    def delete_endpoint(self, transaction: Transaction, name: str, *, by: str = "") -> bool:
        transaction.run(_DELETE_LIMIT, kind="endpoint", name=clean(name))
        return _add_version(transaction, clean(name), None, by) is not None


def _read_versions(transaction: Transaction, name: str, limit: int = VERSIONS_MAX) -> list[Endpoint]:
    return list(map(_endpoint_of, transaction.run(_VERSIONS, name=name, row_limit=limit)))


def _add_version(
    transaction: Transaction, name: str, settings: EndpointSettings | None, by: str
) -> Endpoint | None:
    """Return the new version, or the last one if nothing changes; None if nothing is to be deleted."""
    for _ in range(_TRIES_MAX):
        last = next(iter(_read_versions(transaction, name, 1)), None)
        current = None if last is None or last.deleted else last
        new = settings or (current and current.settings)
        if new is None:
            return None
        if current is not None and current.settings == settings:
            return current
        values: dict[str, Any] = {
            "name": name,
            "version": 1 + (last.version if last else 0),
            "settings": clean(dump_endpoint_settings(new)),
            "created_by": clean(by),
            "deleted": settings is None,
        }
        if rows := transaction.run(_INSERT, **values):
            transaction.run(_PRUNE, name=name, version=values["version"], versions_max=VERSIONS_MAX)
            return _endpoint_of(rows[0])
    raise JobLedgerUnavailableError(f"endpoint {name} is being changed by others: try again")


def _endpoint_of(row: Sequence[Any]) -> Endpoint:
    name, version, settings, created_at_ms, created_by, deleted = row
    return Endpoint(name, version, load_endpoint_settings(settings), created_at_ms, created_by, bool(deleted))
