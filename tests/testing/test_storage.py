"""Each broken store fails the checks of the guarantees that it breaks."""

import pytest

from cases import for_each
from headrace.core.errors import HeadraceError, UnavailableError
from headrace.storage.contract import NO_METADATA
from headrace.storage.resolve import MemoryStore
from headrace.testing import STORE_CHECKS, check_reading

PREFIX = "memory://a/"


class LongRanges(MemoryStore):
    def get_range(self, uri, start, length, *, etag=""):
        return super().get_range(uri, start, length + 1, etag=etag)


class DeletesNothing(MemoryStore):
    def delete(self, uri):
        """Delete nothing."""


class ListsBackwards(MemoryStore):
    def list(self, prefix):
        return reversed(list(super().list(prefix)))


class MissesEtags(MemoryStore):
    def stream(self, uri, *, start=0, etag=""):
        return super().stream(uri, start=start)


class LastWriteWins(MemoryStore):
    def put_if_absent(self, uri, data):
        self.put(uri, data)


class MissingIsEmpty(MemoryStore):
    def get(self, uri):
        try:
            return super().get(uri)
        except HeadraceError:
            return b""


class IgnoresTheStart(MemoryStore):
    def stream(self, uri, *, start=0, etag=""):
        return super().stream(uri, etag=etag)


class WritesAtOnce(MemoryStore):
    def writer(self, uri, metadata=NO_METADATA):
        self.put(uri, b"")
        return super().writer(uri, metadata)


class DropsMetadata(MemoryStore):
    def writer(self, uri, metadata=NO_METADATA):
        return super().writer(uri)


def failing_checks(make):
    """Return the names of the checks that fail."""
    return {check.__name__ for check in STORE_CHECKS if _fails(check, make())}


def _fails(check, store):
    try:
        check(store, PREFIX)
    except AssertionError:
        return True
    return False


@for_each(
    ("make", "expected"),
    [
        (MemoryStore, set()),
        (LongRanges, {"check_ranges", "check_etags", "check_large_objects"}),
        (
            DeletesNothing,
            {"check_delete", "check_awkward_names"},
        ),
        (ListsBackwards, {"check_list_by_string_prefix", "check_awkward_names"}),
        (MissesEtags, {"check_etags"}),
        (DropsMetadata, {"check_metadata"}),
        (LastWriteWins, {"check_put_if_absent", "check_put_if_absent_race"}),
        (MissingIsEmpty, {"check_missing_objects", "check_delete", "check_writer"}),
        (IgnoresTheStart, {"check_ranges", "check_large_objects"}),
        (
            WritesAtOnce,
            {"check_writer", "check_writer_replaces", "check_writer_aborts", "check_large_objects"},
        ),
    ],
)
def test_broken_store_fails_its_checks(make, expected):
    assert failing_checks(make) == expected


@for_each("make", [LongRanges, MissesEtags, MissingIsEmpty, IgnoresTheStart])
def test_broken_read_only_store_fails(make):
    data = bytes(range(200))
    good = MemoryStore()
    good.put(f"{PREFIX}k", data)
    check_reading(good, f"{PREFIX}k", data)
    broken = make()
    broken.put(f"{PREFIX}k", data)
    with pytest.raises(AssertionError):
        check_reading(broken, f"{PREFIX}k", data)


def test_error_of_an_unavailable_store_passes_through():

    class Away(MemoryStore):
        def put(self, uri, data):
            raise UnavailableError(uri, "away")

    with pytest.raises(UnavailableError):
        STORE_CHECKS[0](Away(), PREFIX)
