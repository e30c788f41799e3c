"""The store that fails on purpose."""

import pytest

from cases import for_each
from headrace.core.errors import UnavailableError
from headrace.storage.resolve import MemoryStore
from headrace.testing import STORE_CHECKS, FlakyStore

URI = "memory://a/k"


@for_each("check", STORE_CHECKS)
def test_store_without_failures_passes_the_suite(check):
    check(FlakyStore(MemoryStore()), "memory://a/")


def test_every_kth_call_fails():
    store = FlakyStore(MemoryStore(), fail_every=3)
    outcomes = []
    for _ in range(9):
        try:
            store.put(URI, b"1")
            outcomes.append(True)
        except UnavailableError:
            outcomes.append(False)
    assert outcomes == [True, True, False] * 3
    assert (store.calls, store.failures) == (9, 3)


def _lost_writes(seed: int) -> list[bool]:
    inner = MemoryStore()
    store = FlakyStore(inner, fail_every=1, seed=seed)
    for number in range(20):
        with pytest.raises(UnavailableError):
            store.put(f"{URI}{number:02}", b"")
    stored = {i.uri for i in inner.list("memory://")}
    return [f"{URI}{number:02}" in stored for number in range(20)]


def test_seed_determines_which_failed_writes_were_done():
    assert _lost_writes(1) == _lost_writes(1) != _lost_writes(2)
    assert {True, False} == set(_lost_writes(1))


@pytest.mark.parametrize("cut_at", [0, 1, 1 << 20, (1 << 20) + 5])
def test_reads_are_cut_at_the_byte(cut_at):
    inner = MemoryStore()
    inner.put(URI, bytes(3 << 20))
    received = bytearray()

    def read():
        for chunk in FlakyStore(inner, cut_reads_at=cut_at).stream(URI):
            received.extend(chunk)

    with pytest.raises(UnavailableError, match="cut off"):
        read()
    assert len(received) == cut_at
