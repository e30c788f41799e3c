"""Drafts on a disk (one file) and on a store without append (segments)."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import HeadraceError, NotFoundError, StorageError, UnavailableError
from headrace.storage import draft as drafts
from headrace.storage.draft import (
    PersistedDraft,
    PersistedRange,
    append_range,
    assemble,
    discard,
    open_draft,
    read_range,
)
from headrace.storage.local import LocalStore
from headrace.storage.resolve import MemoryStore
from headrace.testing import FlakyStore

SEGMENT_BYTES = 10


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(drafts, "SEGMENT_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr(drafts, "COPY_BYTES", 7)


@pytest.fixture(params=["disk", "segments"])
def store_and_base(request, tmp_path):
    if request.param == "disk":
        return LocalStore(), f"{tmp_path}/out/"
    return MemoryStore(), "memory://out/"


def names(store, base) -> list[str]:
    return [info.uri.removeprefix(base) for info in store.list(base)]


def full_range(persisted: PersistedDraft) -> PersistedRange:
    return PersistedRange(persisted, 0, persisted.nbytes)


def persisted_bytes(store, part: PersistedRange) -> bytes:
    return b"".join(read_range(store, part))


@for_each("writes", [[], [b""], [b"abc"], [b"a" * 10], [b"a" * 25, b"b"], [b"ab"] * 30])
def test_published_object_has_all_bytes(store_and_base, writes):
    store, base = store_and_base
    draft = open_draft(store, base + "drafts/d")
    for data in writes:
        draft.write(data)
    assert draft.nbytes == len(b"".join(writes))
    assert base + "k.out" not in [i.uri for i in store.list(base)]
    assert draft.publish(base + "sub/k.out") is None
    draft.close()
    assert store.get(base + "sub/k.out") == b"".join(writes)
    assert names(store, base) == ["sub/k.out"]


def test_publish_replaces_an_existing_object(store_and_base):
    store, base = store_and_base
    store.put(base + "k.out", b"old")
    draft = open_draft(store, base + "d")
    draft.write(b"new")
    draft.publish(base + "k.out")
    assert store.get(base + "k.out") == b"new"


def test_only_persisted_bytes_survive_close(store_and_base):
    store, base = store_and_base
    draft = open_draft(store, base + "d")
    draft.write(b"x" * 13)
    persisted = draft.persist()
    draft.write(b"lost" * 9)
    draft.close()
    draft.close()
    assert persisted.nbytes == 13
    assert persisted_bytes(store, full_range(persisted)) == b"x" * 13
    copy = open_draft(store, base + "e", persisted.full_range)
    assert copy.nbytes == 13
    copy.write(b"more")
    copy.publish(base + "k.out")
    assert store.get(base + "k.out") == b"x" * 13 + b"more"
    assert persisted_bytes(store, full_range(persisted)) == b"x" * 13


@pytest.mark.parametrize("before", [b"abc", b"abc" * 20])
def test_persisted_bytes_survive_publishing_until_discarded(store_and_base, before):
    """A process may die after publishing, before its ledger drops the draft."""
    store, base = store_and_base
    draft = open_draft(store, base + "d")
    draft.write(before)
    persisted = draft.persist()
    draft.write(b"defg")
    left = draft.publish(base + "k.out")
    assert store.get(base + "k.out") == before + b"defg"
    assert persisted_bytes(store, full_range(persisted)) == before
    copy = open_draft(store, base + "e", persisted.full_range)
    copy.write(b"other")
    copy.publish(base + "k.out")
    assert store.get(base + "k.out") == before + b"other"
    assert left is not None
    discard(store, left)
    assert names(store, base) == ["k.out"]


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=24)), max_size=8),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), max_size=4),
    st.booleans(),
)
def test_any_persisted_ranges_can_be_copied_and_assembled(tmp_path_factory, steps, ranges, local):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafts, "SEGMENT_BYTES", SEGMENT_BYTES)
        patch.setattr(drafts, "COPY_BYTES", 7)
        store = LocalStore() if local else MemoryStore()
        base = f"{tmp_path_factory.mktemp('d')}/" if local else "memory://out/"
        draft = open_draft(store, base + "d")
        written = b""
        for step in steps:
            if step is None:
                draft.persist()
            else:
                draft.write(step)
                written += step
        persisted = draft.persist()
        draft.close()
        parts = [
            PersistedRange(persisted, min(a, b, len(written)), min(max(a, b), len(written)))
            for a, b in ranges
        ]
        expected = b"".join(written[p.start : p.stop] for p in parts)
        assert b"".join(persisted_bytes(store, part) for part in parts) == expected
        other = open_draft(store, base + "o")
        other.write(b"first")
        for part in parts:
            append_range(store, other, part)
        assert other.nbytes == 5 + len(expected)
        other.publish(base + "k.out")
        assert store.get(base + "k.out") == b"first" + expected
        assemble(store, [*parts, full_range(persisted)], base + "a", base + "whole.out")
        assert store.get(base + "whole.out") == expected + written
        assert persisted_bytes(store, full_range(persisted)) == written
        discard(store, persisted)
        discard(store, persisted)
        assert names(store, base) == ["k.out", "whole.out"]


def test_assembling_no_ranges_publishes_an_empty_object(store_and_base):
    store, base = store_and_base
    assemble(store, [], base + "a", base + "k.out")
    assert store.get(base + "k.out") == b""
    assert names(store, base) == ["k.out"]


@pytest.mark.parametrize("why", [errno.EXDEV, errno.EINVAL, None])
def test_copy_falls_back_to_read_and_write(tmp_path, monkeypatch, why):
    def refuse(*_):
        raise OSError(why, "not here")

    if why is None:
        monkeypatch.delattr(os, "copy_file_range")
    else:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    store = LocalStore()
    draft = open_draft(store, f"{tmp_path}/d")
    draft.write(b"0123456789" * 3)
    persisted = draft.persist()
    draft.close()
    assemble(
        store,
        [PersistedRange(persisted, 3, 28), PersistedRange(persisted, 0, 2)],
        f"{tmp_path}/a",
        f"{tmp_path}/k",
    )
    assert store.get(f"{tmp_path}/k") == (b"0123456789" * 3)[3:28] + b"01"
    os.truncate(f"{tmp_path}/d", 20)
    with pytest.raises(StorageError, match="has 20 bytes, but 30 were persisted"):
        open_draft(store, f"{tmp_path}/e", persisted.full_range)


def test_disk_error_while_copying_raises_storage_error(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = LocalStore()
    draft = open_draft(store, f"{tmp_path}/d")
    draft.write(b"1")
    persisted = draft.persist()
    monkeypatch.setattr(os, "copy_file_range", fail)
    with pytest.raises(StorageError, match="No space left"):
        open_draft(store, f"{tmp_path}/e", persisted.full_range)


def test_missing_draft_raises_not_found(store_and_base):
    store, base = store_and_base
    draft = open_draft(store, base + "d")
    draft.write(b"abc" * 9)
    persisted = draft.persist()
    draft.close()
    discard(store, persisted)
    with pytest.raises(NotFoundError):
        open_draft(store, base + "e", persisted.full_range)
    with pytest.raises(NotFoundError):
        assemble(store, [full_range(persisted)], base + "a", base + "k.out")
    assert "k.out" not in names(store, base)


def test_draft_shorter_than_persisted_raises(store_and_base):
    """A truncated draft raises; the output is never shorter."""
    store, base = store_and_base
    draft = open_draft(store, base + "d")
    draft.write(b"abc" * 9)
    persisted = draft.persist()
    draft.close()
    if persisted.segments:
        store.put(drafts.segment_uri(persisted.uri, persisted.segments - 1), b"ab")
    else:
        os.truncate(persisted.uri, 22)
    for read in (
        lambda: open_draft(store, base + "e", persisted.full_range),
        lambda: persisted_bytes(store, full_range(persisted)),
        lambda: assemble(store, [full_range(persisted)], base + "a", base + "k.out"),
    ):
        with pytest.raises(StorageError, match=r"persisted"):
            read()
    assert "k.out" not in names(store, base)


def test_long_draft_has_segments_of_equal_length():
    store = MemoryStore()
    draft = open_draft(store, "memory://out/d")
    draft.write(b"a" * 34)
    persisted = draft.persist()
    assert persisted.segments == 4
    assert [i.size_bytes for i in store.list("memory://out/d")] == [10, 10, 10, 4]
    draft.write(b"b" * 11)
    assert draft.persist().segments == 6


def test_short_unpersisted_draft_is_one_write():
    store = FlakyStore(MemoryStore())
    draft = open_draft(store, "memory://out/d")
    draft.write(b"a" * 9)
    assert store.calls == 0
    draft.publish("memory://out/k")
    assert store.calls == 1


def test_failed_upload_raises_and_publishes_nothing():
    store = FlakyStore(MemoryStore(), fail_every=1)
    draft = open_draft(store, "memory://out/d")
    draft.write(b"a" * 15)
    for operation in (lambda: draft.write(b"a" * 15), draft.persist, lambda: draft.publish("memory://out/k")):
        with pytest.raises(UnavailableError):
            operation()
    draft.close()


def test_publish_rejects_the_name_of_a_folder(tmp_path):
    (tmp_path / "k.out").mkdir()
    draft = open_draft(LocalStore(), f"{tmp_path}/d")
    draft.write(b"a")
    with pytest.raises(HeadraceError, match=r"k\.out"):
        draft.publish(f"{tmp_path}/k.out")
    draft.close()
