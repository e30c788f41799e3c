"""The local store, beyond the conformance suite of all stores."""

import os
import stat
import threading
from pathlib import Path

import pytest

from headrace.core.errors import (
    AccessDeniedError,
    ChangedError,
    ConfigError,
    NotFoundError,
    StorageError,
)
from headrace.storage.local import LocalStore, replace_by_link

store = LocalStore()


def _names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_listing_keeps_the_given_prefix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store.put("in/a", b"")
    store.put("in/deep/b", b"")
    store.put("index", b"")
    assert [i.uri for i in store.list("in")] == ["in/a", "in/deep/b", "index"]
    assert [i.uri for i in store.list("")] == ["in/a", "in/deep/b", "index"]
    assert [i.uri for i in store.list("./in/")] == ["./in/a", "./in/deep/b"]
    assert [i.uri for i in store.list(f"file://{tmp_path}/ind")] == [f"file://{tmp_path}/index"]
    assert list(store.list("nothing/here")) == []
    assert list(store.list("index/x")) == []


def test_unfinished_write_is_not_listed(tmp_path):
    with store.writer(f"{tmp_path}/a") as writer:
        writer.write(b"1")
        assert len(_names(tmp_path)) == 1
        assert list(store.list(f"{tmp_path}/")) == list(store.list(f"{tmp_path}/.h")) == []
    assert _names(tmp_path) == ["a"]


def test_failed_and_refused_writes_leave_no_temporary_file(tmp_path):
    store.put_if_absent(f"{tmp_path}/a", b"1")
    with pytest.raises(StorageError):
        store.put_if_absent(f"{tmp_path}/a", b"2")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="is a folder"):
        store.put(f"{tmp_path}/folder", b"")
    writer = store.writer(f"{tmp_path}/b")
    writer.write(b"1")
    writer.abort()
    assert _names(tmp_path) == ["a", "folder"]


def test_clean_removes_only_old_temporary_files(tmp_path):
    (tmp_path / "deep").mkdir()
    deep = tmp_path / "deep" / ".headrace-2-old.tmp"
    left = [tmp_path / ".headrace-1-old.tmp", deep]
    for path in left:
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    (tmp_path / ".headrace-3-young.tmp").write_bytes(b"half")
    (tmp_path / "kept.tmp").write_bytes(b"ours to keep")
    os.utime(tmp_path / "kept.tmp", (0, 0))
    assert store.clean(f"{tmp_path}/") == 1
    assert _names(tmp_path) == [".headrace-3-young.tmp", "deep", "kept.tmp"]
    assert deep.exists()
    assert store.clean(f"{tmp_path}/none/") == 0


def test_new_files_have_default_permissions(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    store.put(f"{tmp_path}/a", b"")
    store.put_if_absent(f"{tmp_path}/b", b"")
    modes = {stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("usual", "a", "b")}
    assert len(modes) == 1


def test_symbolic_links_to_files_are_followed_and_listed(tmp_path):
    store.put(f"{tmp_path}/real/file", b"1")
    (tmp_path / "link").symlink_to("real/file")
    (tmp_path / "folder-link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert store.get(f"{tmp_path}/link") == b"1"
    store.put(f"{tmp_path}/link", b"2")
    assert (tmp_path / "link").is_symlink()
    assert store.get(f"{tmp_path}/real/file") == store.get(f"{tmp_path}/folder-link/file") == b"2"
    assert [i.uri for i in store.list(f"{tmp_path}/")] == [f"{tmp_path}/link", f"{tmp_path}/real/file"]


def test_listing_rejects_a_name_that_is_not_utf_8(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.csv")).write_bytes(b"")
    with pytest.raises(ConfigError, match="not UTF-8: rename the file"):
        list(LocalStore().list(f"{tmp_path}/"))


def test_folder_is_not_an_object(tmp_path):
    for call in (store.head, store.get, lambda u: list(store.stream(u)), lambda u: store.get_range(u, 0, 1)):
        with pytest.raises(NotFoundError, match="is a folder"):
            call(str(tmp_path))
    with pytest.raises(ConfigError, match="names a folder"):
        store.put(f"{tmp_path}/", b"")
    with pytest.raises(NotFoundError):
        store.head(__file__ + "/")


def test_file_truncated_while_streamed_raises_changed(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(3 << 20))
    stream = store.stream(str(path))
    next(stream)
    with path.open("r+b") as file:
        file.truncate(1 << 20)
    with pytest.raises(ChangedError):
        list(stream)


def test_overwritten_bytes_are_never_yielded(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(3 << 20))
    stream = store.stream(str(path))
    received = [next(stream)]
    with path.open("r+b") as file:
        file.write(b"x" * (3 << 20))
    with pytest.raises(ChangedError):
        received.extend(stream)
    assert len(received) == 1


def test_pipe_can_be_streamed_and_has_no_size(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(b"x" * 200_000))
    writer.start()
    assert b"".join(store.stream(str(path), start=50_000)) == b"x" * 150_000
    writer.join()
    assert store.head(str(path)).size_bytes is None


def test_unreadable_file_raises_access_denied(tmp_path, monkeypatch):
    def refuse(*_: object):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # root, which tests may run as, may read everything
    with pytest.raises(AccessDeniedError, match="Permission denied"):
        store.get(f"{tmp_path}/a")


def test_full_disk_raises_and_leaves_no_file(tmp_path, monkeypatch):
    def full(*_: object):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="a: No space left on device"):
        store.put(f"{tmp_path}/a", b"1")
    assert _names(tmp_path) == []


def test_closed_writer_rejects_writes(tmp_path):
    writer = store.writer(f"{tmp_path}/a")
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"")


def test_unflushed_put_is_atomic_and_creates_folders(tmp_path):
    uri = f"{tmp_path}/new/deep/a"
    store.put_unflushed(uri, b"first", drafts=f"{tmp_path}/_drafts/")
    store.put_unflushed(uri, b"second, longer", drafts=f"{tmp_path}/_drafts/")
    assert store.get(uri) == b"second, longer"
    assert _names(tmp_path / "new" / "deep") == ["a"]
    store.flush(f"{tmp_path}/")
    store.flush(f"file://{tmp_path}/new")


@pytest.mark.parametrize(
    "publish",
    [
        lambda source, path: store.put_unflushed(path, b"x", drafts=f"{Path(source).parent}/"),
        replace_by_link,
    ],
    ids=["put", "link"],
)
def test_killed_publication_leaves_files_only_in_the_drafts_folder(tmp_path, monkeypatch, publish):
    source = tmp_path / "drafts" / "d"
    source.parent.mkdir()
    source.write_bytes(b"x")
    left = []

    def killed(*_):
        """Record the files at the last moment before the rename, then stop."""
        left.extend(p.parent for p in tmp_path.rglob("*") if p.is_file() and p != source)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        publish(str(source), f"{tmp_path}/a")
    assert left == [source.parent]


def test_flush_syncs_the_file_system_and_unflushed_put_syncs_nothing(tmp_path, monkeypatch):
    """A test cannot cut the power, so this one records the system calls."""
    calls = []
    monkeypatch.setattr(os, "fsync", lambda file: calls.append("file"))
    monkeypatch.setattr(
        "headrace.storage.local._sync_file_system", lambda folder: calls.append("file system")
    )
    store.put_unflushed(f"{tmp_path}/a", b"x", drafts=f"{tmp_path}/_drafts/")
    assert calls == []
    store.flush(str(tmp_path))
    assert calls == ["file system"]
    store.put(f"{tmp_path}/b", b"x")
    assert calls == ["file system", "file", "file"]


def test_flush_without_syncfs_syncs_everything(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    monkeypatch.setattr(os, "sync", lambda: calls.append("all"))
    store.flush(str(tmp_path))
    assert calls == ["all"]


def test_failed_flush_raises_storage_error(tmp_path, monkeypatch):
    class Library:
        @staticmethod
        def syncfs(_):
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: Library)
    monkeypatch.setattr("ctypes.get_errno", lambda: 28)
    with pytest.raises(StorageError, match="No space left"):
        store.flush(str(tmp_path))


def test_flush_of_a_missing_folder_raises_not_found(tmp_path):
    with pytest.raises(NotFoundError):
        store.flush(f"{tmp_path}/missing/")


def test_unflushed_put_rejects_the_name_of_a_folder(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match="is a folder"):
        store.put_unflushed(f"{tmp_path}/a", b"x", drafts=f"{tmp_path}/_drafts/")
    with pytest.raises(ConfigError, match="names a folder"):
        store.put_unflushed(f"{tmp_path}/a/", b"x", drafts=f"{tmp_path}/_drafts/")
