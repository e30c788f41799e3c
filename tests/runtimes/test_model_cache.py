"""Fetched models: entries of the cache, changed models, unreachable stores, and hostile archives."""

import io
import logging
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.core.errors import (
    ConfigError,
    CorruptError,
    NotFoundError,
    StorageError,
    TruncatedError,
    UnavailableError,
)
from headrace.runtimes import model_cache
from headrace.runtimes.model_cache import CACHE_VARIABLE, cache_folder, local_model
from headrace.storage.resolve import MemoryStore, Stores
from servers.http_files import Fault

URI = "memory://models/churn.py"


class Objects(Stores):
    """Stores whose only store is in memory, counts its reads, and can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = CountingStore()

    def for_uri(self, uri: str):
        return self.memory


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.streams: list[str] = []
        self.error: Exception | None = None
        self.before_chunk = lambda: None

    def stream(self, uri: str, *, start: int = 0, etag: str = ""):
        self.streams.append(uri)
        for chunk in super().stream(uri, start=start, etag=etag):
            self.before_chunk()
            yield chunk

    def head(self, uri: str):
        if self.error is not None:
            raise self.error
        return super().head(uri)

    def list(self, prefix: str):
        if self.error is not None:
            raise self.error
        return super().list(prefix)


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def fetch(objects, tmp_path):
    return lambda spec: local_model(spec, objects, tmp_path / "cache")


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def leftovers(cache: Path) -> list[str]:
    """Return the names in the cache that are neither an entry nor its lock."""
    return [p.name for p in cache.glob("models/*/*") if p.name.startswith(".")]


# Entries


def test_file_is_fetched_once(objects, fetch):
    objects.memory.put(URI, b"code")
    path = Path(fetch(URI))
    assert (path.name, path.read_bytes()) == ("churn.py", b"code")
    assert fetch(URI) == str(path)
    assert fetch(f"{URI}:Churn") == f"{path}:Churn"
    assert objects.memory.streams == [URI]


def test_changed_etag_fetches_again_and_keeps_the_entry_in_use(objects, fetch):
    objects.memory.put(URI, b"one")
    first = Path(fetch(URI))
    objects.memory.put(URI, b"two")
    second = Path(fetch(URI))
    assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")
    assert first.name == second.name


def test_prefix_is_fetched_with_all_objects(objects, fetch):
    objects.memory.put("memory://models/bert/config.json", b"{}")
    objects.memory.put("memory://models/bert/deep/one.bin", b"1")
    objects.memory.put("memory://models/bertha.onnx", b"other")
    folder = Path(fetch("memory://models/bert/"))
    assert folder.name == "bert"
    assert files_in(folder) == {"config.json": b"{}", "deep/one.bin": b"1"}
    objects.memory.put("memory://models/bert/more.bin", b"2")
    assert files_in(Path(fetch("memory://models/bert/"))).keys() == {
        "config.json",
        "deep/one.bin",
        "more.bin",
    }


@pytest.mark.parametrize(("suffix", "mode"), [(".tar", "w"), (".tar.gz", "w:gz"), (".tgz", "w:gz")])
def test_archive_is_unpacked(objects, fetch, suffix, mode):
    objects.memory.put(f"memory://m/churn{suffix}", tar({"./model.onnx": b"1", "code/a.py": b"2"}, mode))
    folder = Path(fetch(f"memory://m/churn{suffix}"))
    assert (folder.name, files_in(folder)) == ("churn", {"model.onnx": b"1", "code/a.py": b"2"})


def test_single_folder_in_an_archive_is_the_model(objects, fetch):
    objects.memory.put(
        "memory://m/v7.tar", tar({"._churn": b"", "churn/model.onnx": b"1", "churn/b/c": b"2"})
    )
    folder = Path(fetch("memory://m/v7.tar"))
    assert (folder.name, files_in(folder)) == ("churn", {"model.onnx": b"1", "b/c": b"2"})


def test_local_archive_is_unpacked_into_the_cache(tmp_path):
    archive = tmp_path / "churn.tar.gz"
    archive.write_bytes(tar({"model.onnx": b"1"}, "w:gz"))
    with Stores() as stores:
        first = Path(local_model(str(archive), stores, tmp_path / "cache"))
        assert files_in(first) == {"model.onnx": b"1"}
        archive.write_bytes(tar({"model.onnx": b"22"}, "w:gz"))
        assert files_in(Path(local_model(f"file://{archive}", stores, tmp_path / "cache"))) == {
            "model.onnx": b"22"
        }


def test_folder_whose_name_ends_like_an_archive_is_a_folder(fetch, tmp_path):
    (tmp_path / "m.tar").mkdir()
    assert fetch(str(tmp_path / "m.tar")) == str(tmp_path / "m.tar")


def test_server_without_etags(http_files, tmp_path):
    """The content names the entry, so that a model that did not change has one entry."""
    http_files.etags = http_files.dates = False
    http_files.objects["/churn.onnx"] = b"one"
    with Stores(retry_s=0.0) as stores:
        paths = [local_model(f"{http_files.url}/churn.onnx", stores, tmp_path) for _ in range(2)]
        http_files.objects["/churn.onnx"] = b"two"
        paths.append(local_model(f"{http_files.url}/churn.onnx", stores, tmp_path))
    assert paths[0] == paths[1]
    assert [Path(path).read_bytes() for path in paths] == [b"one", b"one", b"two"]
    assert leftovers(tmp_path) == []


def test_unreachable_server_leaves_the_version_that_was_checked_last(http_files, tmp_path):
    with Stores(retry_s=0.0) as stores:
        for data in (b"one", b"two", b"one"):
            http_files.objects["/churn.onnx"] = data
            path = local_model(f"{http_files.url}/churn.onnx", stores, tmp_path)
        http_files.faults = [Fault(status=503)] * 2
        assert local_model(f"{http_files.url}/churn.onnx", stores, tmp_path) == path
    assert Path(path).read_bytes() == b"one"
    assert [method for method, _, _ in http_files.requests].count("GET") == 2


def test_cache_folder():
    home = Path("~/.cache/headrace").expanduser()
    assert cache_folder({}) == home
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/headrace")
    assert cache_folder({"XDG_CACHE_HOME": "/x", CACHE_VARIABLE: "/y"}) == Path("/y")


# Failures


def test_failed_fetch_leaves_nothing(objects, fetch, tmp_path):
    objects.memory.put(URI, b"code")

    def fail() -> None:
        raise UnavailableError(URI, "gone")

    objects.memory.before_chunk = fail
    with pytest.raises(UnavailableError):
        fetch(URI)
    assert leftovers(tmp_path / "cache") == []
    objects.memory.before_chunk = lambda: None
    assert Path(fetch(URI)).read_bytes() == b"code"


def test_rest_of_a_killed_fetch_is_removed(objects, fetch, tmp_path):
    objects.memory.put(URI, b"one")
    root = Path(fetch(URI)).parents[1]
    (root / ".fetching-killed").mkdir()
    (root / ".fetching-killed" / "churn.py").write_bytes(b"o")
    objects.memory.put(URI, b"two")
    fetch(URI)
    assert leftovers(tmp_path / "cache") == []


def test_model_that_changes_during_the_fetch_is_refused(objects, fetch, monkeypatch):
    objects.memory.put("memory://m/a/1", b"1")
    objects.memory.put("memory://m/a/2", b"2")
    objects.memory.before_chunk = lambda: objects.memory.put("memory://m/a/2", b"3")
    with pytest.raises(StorageError, match="has changed"):
        fetch("memory://m/a/")


def test_missing_models(objects, fetch):
    with pytest.raises(NotFoundError, match="the URI of a folder ends in /"):
        fetch("memory://m/gone.onnx")
    with pytest.raises(ConfigError, match="there is nothing below it"):
        fetch("memory://m/gone/")


def test_unreachable_store_leaves_the_version_in_use(objects, fetch, caplog):
    objects.memory.put(URI, b"one")
    first = fetch(URI)
    objects.memory.put(URI, b"two")
    second = fetch(URI)
    objects.memory.error = UnavailableError(URI, "no route to host")
    with caplog.at_level(logging.WARNING, "headrace"):
        assert fetch(URI) == second != first
    assert "it may be outdated: memory://models/churn.py: no route to host" in caplog.text
    with pytest.raises(UnavailableError):
        fetch("memory://models/other.py")
    objects.memory.error = NotFoundError(URI, "no such object")
    with pytest.raises(NotFoundError):
        fetch(URI)


def test_cache_that_cannot_be_written(objects, tmp_path):
    objects.memory.put(URI, b"one")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        local_model(URI, objects, tmp_path / "file")


# Concurrency


def test_concurrent_fetches_share_one_download(objects, fetch, tmp_path):
    objects.memory.put(URI, b"code")
    arrived = threading.Barrier(8)

    def together(_: int) -> str:
        arrived.wait()
        return fetch(URI)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(together, range(8)))) == 1
    assert objects.memory.streams == [URI]
    assert leftovers(tmp_path / "cache") == []


def test_without_locks_the_faster_process_wins(objects, fetch, tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(model_cache.fcntl, "flock", no_locks)
    objects.memory.put(URI, b"code")
    other: list[str] = []

    def fetch_meanwhile() -> None:
        objects.memory.before_chunk = lambda: None
        other.append(fetch(URI))

    objects.memory.before_chunk = fetch_meanwhile
    assert [fetch(URI)] == other
    assert Path(other[0]).read_bytes() == b"code"
    assert leftovers(tmp_path / "cache") == []


# Hostile archives


def put_archive(objects: Objects, data: bytes) -> str:
    objects.memory.put("memory://m/bad.tar", data)
    return "memory://m/bad.tar"


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/tmp/headrace-outside"])
def test_member_outside_the_folder_is_refused(objects, fetch, tmp_path, name):
    uri = put_archive(objects, tar({"good": b"1", name: b"2"}))
    with pytest.raises(ConfigError, match=r"memory://m/bad\.tar: .* is not the path of a file below"):
        fetch(uri)
    assert [p for p in tmp_path.rglob("*") if p.name in ("outside", "good")] == []
    assert not Path("/tmp/headrace-outside").exists()


def test_links_are_left_out_and_never_followed(objects, fetch, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("inner")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
        info = tarfile.TarInfo("inner/outside")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"1"))
        archive.addfile(tarfile.TarInfo("model.onnx"))
    folder = Path(fetch(put_archive(objects, buffer.getvalue())))
    assert files_in(folder) == {"inner/outside": b"1", "model.onnx": b""}
    assert not (tmp_path / "outside").exists()


def test_objects_outside_the_prefix_are_refused(objects, fetch, monkeypatch):
    objects.memory.put("memory://m/a/x", b"1")
    (info,) = objects.memory.list("memory://m/a/")
    outside = type(info)("memory://m/a/../../x", 1, info.etag)
    monkeypatch.setattr(objects.memory, "list", lambda _: [outside])
    monkeypatch.setattr(objects.memory, "stream", lambda *_, **__: [b"1"])
    with pytest.raises(ConfigError, match="is not the path of a file below"):
        fetch("memory://m/a/")


def test_size_and_number_of_files_are_limited(objects, fetch, tmp_path, monkeypatch):
    monkeypatch.setattr(model_cache, "MODEL_BYTES_MAX", 1000)
    monkeypatch.setattr(model_cache, "MODEL_FILES_MAX", 3)
    objects.memory.put("memory://m/bomb.tar.gz", tar({"zeros": bytes(10_000_000)}, "w:gz"))
    objects.memory.put("memory://m/many.tar", tar({str(n): b"" for n in range(4)}))
    objects.memory.put("memory://m/large.onnx", bytes(1001))
    for uri in ("memory://m/bomb.tar.gz", "memory://m/many.tar", "memory://m/large.onnx"):
        with pytest.raises(ConfigError, match="is too large for a model: the limits are"):
            fetch(uri)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.name != "lock"] == []


def test_damaged_archives_are_refused(objects, fetch):
    whole = tar({"model.onnx": bytes(5000)}, "w:gz")
    objects.memory.put("memory://m/cut.tar.gz", whole[:-20])
    with pytest.raises(TruncatedError, match=r"memory://m/cut\.tar\.gz"):
        fetch("memory://m/cut.tar.gz")
    objects.memory.put("memory://m/not.tar", b"not an archive" * 100)
    with pytest.raises(CorruptError, match=r"memory://m/not\.tar.*it is not a tar archive"):
        fetch("memory://m/not.tar")
