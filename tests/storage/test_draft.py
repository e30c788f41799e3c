"""Outputs under way, on a disk (one file) and on a store that cannot append (segments)."""

import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import HeadraceError, NotFoundError, StorageError, UnavailableError
from headrace.storage import draft as drafts
from headrace.storage.draft import Kept, KeptRange, append, assemble, discard, open_draft, read_kept
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore
from headrace.testing import FlakyStore

SEGMENT_BYTES = 10


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(drafts, "SEGMENT_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr(drafts, "COPY_BYTES", 7)


@pytest.fixture(params=["disk", "segments"])
def place(request, tmp_path):
    """A store, and what its names begin with."""
    if request.param == "disk":
        return LocalStore(), f"{tmp_path}/out/"
    return MemoryStore(), "memory://out/"


def names(store, base) -> list[str]:
    return [info.uri.removeprefix(base) for info in store.list(base)]


def all_of(kept: Kept) -> KeptRange:
    return KeptRange(kept, 0, kept.nbytes)


def kept_bytes(store, part: KeptRange) -> bytes:
    return b"".join(read_kept(store, part))


@pytest.mark.parametrize("writes", [[], [b""], [b"abc"], [b"a" * 10], [b"a" * 25, b"b"], [b"ab"] * 30])
def test_what_is_published_is_all_that_was_written(place, writes):
    store, base = place
    draft = open_draft(store, base + "drafts/d")
    for data in writes:
        draft.write(data)
    assert draft.nbytes == len(b"".join(writes))
    assert base + "k.out" not in [i.uri for i in store.list(base)]
    assert draft.publish(base + "sub/k.out") is None
    draft.close()
    assert store.get(base + "sub/k.out") == b"".join(writes)
    assert names(store, base) == ["sub/k.out"]


def test_what_is_published_replaces(place):
    store, base = place
    store.put(base + "k.out", b"old")
    draft = open_draft(store, base + "d")
    draft.write(b"new")
    draft.publish(base + "k.out")
    assert store.get(base + "k.out") == b"new"


def test_what_was_kept_survives_what_came_after_it_does_not(place):
    store, base = place
    draft = open_draft(store, base + "d")
    draft.write(b"x" * 13)
    kept = draft.keep()
    draft.write(b"lost" * 9)
    draft.close()
    draft.close()
    assert kept.nbytes == 13
    assert kept_bytes(store, all_of(kept)) == b"x" * 13
    again = open_draft(store, base + "e", kept.whole)
    assert again.nbytes == 13
    again.write(b"more")
    again.publish(base + "k.out")
    assert store.get(base + "k.out") == b"x" * 13 + b"more"
    assert kept_bytes(store, all_of(kept)) == b"x" * 13


@pytest.mark.parametrize("before", [b"abc", b"abc" * 20])
def test_what_was_kept_survives_publishing_until_it_is_discarded(place, before):
    """A process may die behind it, before its ledger says that nobody needs the draft any more."""
    store, base = place
    draft = open_draft(store, base + "d")
    draft.write(before)
    kept = draft.keep()
    draft.write(b"defg")
    left = draft.publish(base + "k.out")
    assert store.get(base + "k.out") == before + b"defg"
    assert kept_bytes(store, all_of(kept)) == before
    again = open_draft(store, base + "e", kept.whole)
    again.write(b"other")
    again.publish(base + "k.out")
    assert store.get(base + "k.out") == before + b"other"
    assert left is not None
    discard(store, left)
    assert names(store, base) == ["k.out"]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=24)), max_size=8),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), max_size=4),
    st.booleans(),
)
def test_any_ranges_of_what_was_kept_can_be_copied_and_assembled(tmp_path_factory, steps, ranges, local):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafts, "SEGMENT_BYTES", SEGMENT_BYTES)
        patch.setattr(drafts, "COPY_BYTES", 7)
        store = LocalStore() if local else MemoryStore()
        base = f"{tmp_path_factory.mktemp('d')}/" if local else "memory://out/"
        draft = open_draft(store, base + "d")
        written = b""
        for step in steps:
            if step is None:
                draft.keep()
            else:
                draft.write(step)
                written += step
        kept = draft.keep()
        draft.close()
        parts = [KeptRange(kept, min(a, b, len(written)), min(max(a, b), len(written))) for a, b in ranges]
        expected = b"".join(written[p.start : p.stop] for p in parts)
        assert b"".join(kept_bytes(store, part) for part in parts) == expected
        other = open_draft(store, base + "o")
        other.write(b"first")
        for part in parts:
            append(store, other, part)
        assert other.nbytes == 5 + len(expected)
        other.publish(base + "k.out")
        assert store.get(base + "k.out") == b"first" + expected
        assemble(store, [*parts, all_of(kept)], base + "a", base + "whole.out")
        assert store.get(base + "whole.out") == expected + written
        assert kept_bytes(store, all_of(kept)) == written
        discard(store, kept)
        discard(store, kept)
        assert names(store, base) == ["k.out", "whole.out"]


def test_nothing_is_assembled_to_an_empty_object(place):
    store, base = place
    assemble(store, [], base + "a", base + "k.out")
    assert store.get(base + "k.out") == b""
    assert names(store, base) == ["k.out"]


@pytest.mark.parametrize("why", [errno.EXDEV, errno.EINVAL, None])
def test_where_the_kernel_cannot_copy_it_is_done_by_hand(tmp_path, monkeypatch, why):
    def refuse(*_):
        raise OSError(why, "not here")

    if why is None:
        monkeypatch.delattr(os, "copy_file_range")
    else:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    store = LocalStore()
    draft = open_draft(store, f"{tmp_path}/d")
    draft.write(b"0123456789" * 3)
    kept = draft.keep()
    draft.close()
    assemble(store, [KeptRange(kept, 3, 28), KeptRange(kept, 0, 2)], f"{tmp_path}/a", f"{tmp_path}/k")
    assert store.get(f"{tmp_path}/k") == (b"0123456789" * 3)[3:28] + b"01"
    os.truncate(f"{tmp_path}/d", 20)
    with pytest.raises(StorageError, match="has 20 bytes, 30 were kept"):
        open_draft(store, f"{tmp_path}/e", kept.whole)


def test_a_disk_that_fails_in_copying_is_told(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = LocalStore()
    draft = open_draft(store, f"{tmp_path}/d")
    draft.write(b"1")
    kept = draft.keep()
    monkeypatch.setattr(os, "copy_file_range", fail)
    with pytest.raises(StorageError, match="No space left"):
        open_draft(store, f"{tmp_path}/e", kept.whole)


def test_a_draft_that_is_gone_is_told(place):
    store, base = place
    draft = open_draft(store, base + "d")
    draft.write(b"abc" * 9)
    kept = draft.keep()
    draft.close()
    discard(store, kept)
    with pytest.raises(NotFoundError):
        open_draft(store, base + "e", kept.whole)
    with pytest.raises(NotFoundError):
        assemble(store, [all_of(kept)], base + "a", base + "k.out")
    assert "k.out" not in names(store, base)


def test_a_draft_shorter_than_what_was_kept_is_an_error(place):
    """As when somebody cut the file; never a shorter output."""
    store, base = place
    draft = open_draft(store, base + "d")
    draft.write(b"abc" * 9)
    kept = draft.keep()
    draft.close()
    if kept.segments:
        store.put(drafts.segment_uri(kept.uri, kept.segments - 1), b"ab")
    else:
        os.truncate(kept.uri, 22)
    for copy in (
        lambda: open_draft(store, base + "e", kept.whole),
        lambda: kept_bytes(store, all_of(kept)),
        lambda: assemble(store, [all_of(kept)], base + "a", base + "k.out"),
    ):
        with pytest.raises(StorageError, match=r"kept"):
            copy()
    assert "k.out" not in names(store, base)


def test_a_long_draft_is_segments_of_one_length():
    store = MemoryStore()
    draft = open_draft(store, "memory://out/d")
    draft.write(b"a" * 34)
    kept = draft.keep()
    assert kept.segments == 4
    assert [i.size_bytes for i in store.list("memory://out/d")] == [10, 10, 10, 4]
    draft.write(b"b" * 11)
    assert draft.keep().segments == 6


def test_a_short_draft_that_nobody_kept_is_one_write():
    store = FlakyStore(MemoryStore())
    draft = open_draft(store, "memory://out/d")
    draft.write(b"a" * 9)
    assert store.calls == 0
    draft.publish("memory://out/k")
    assert store.calls == 1


def test_an_upload_that_fails_is_raised_and_nothing_is_published():
    store = FlakyStore(MemoryStore(), fail_every=1)
    draft = open_draft(store, "memory://out/d")
    draft.write(b"a" * 15)
    for verb in (lambda: draft.write(b"a" * 15), draft.keep, lambda: draft.publish("memory://out/k")):
        with pytest.raises(UnavailableError):
            verb()
    draft.close()


def test_a_name_that_is_a_folder_cannot_be_published(tmp_path):
    (tmp_path / "k.out").mkdir()
    draft = open_draft(LocalStore(), f"{tmp_path}/d")
    draft.write(b"a")
    with pytest.raises(HeadraceError, match=r"k\.out"):
        draft.publish(f"{tmp_path}/k.out")
    draft.close()
