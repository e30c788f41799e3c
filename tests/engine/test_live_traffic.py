"""The share that live traffic leaves to background work, between real processes."""

import fcntl
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine import live_traffic_process
from engine.live_traffic_process import LIMIT_S
from headrace.batching.background import IDLE_S, SHARE_MIN
from headrace.engine import live_traffic
from headrace.engine.live_traffic import READ_S, SUFFIX, LiveTraffic, shared_folder
from headrace.testing import ManualClock

SLOW_S = 2 * LIMIT_S
WAIT_S = 30.0


class Process:
    """A process that runs `live_traffic_process`."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, live_traffic_process.__file__, str(folder)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __call__(self, line: str) -> str:
        self.process.stdin.write(line + "\n")
        answer = self.process.stdout.readline().strip()
        assert answer, self.process.stderr.read()
        return answer

    def kill(self) -> None:
        """Kill the process as ``kill -9`` does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def end(self) -> str:
        """End the process by the end of its input, and return its log."""
        return self.process.communicate(timeout=WAIT_S)[1]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "headrace"


@pytest.fixture
def start(folder):
    started: list[Process] = []

    def start() -> Process:
        started.append(Process(folder))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def reader(folder, clock):
    return LiveTraffic(folder, clock)


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# One process


def test_share_without_live_traffic_is_one_and_creates_nothing(folder, reader):
    reader.limit(LIMIT_S)
    assert reader.share() == 1.0
    assert not folder.exists()


def test_own_live_requests_count_at_once(reader, clock):
    monitor = reader.limit(LIMIT_S)
    assert reader.share() == 1.0
    monitor.record(SLOW_S)
    assert reader.share() == SHARE_MIN
    clock.advance(IDLE_S)
    assert reader.share() == 1.0


def test_share_is_the_smallest_of_the_monitors(reader, clock):
    """Its own file does not count, which is read only now and then."""
    fast, slow = reader.limit(LIMIT_S), reader.limit(LIMIT_S)
    for _ in range(2000):
        fast.record(0.0)
    assert reader.share() == 1.0
    slow.record(SLOW_S)
    fast.record(0.0)
    clock.advance(READ_S)
    assert reader.share() == SHARE_MIN
    slow.close()
    assert reader.share() == 1.0
    slow.close()


def test_folder_and_file_are_private(folder, reader):
    reader.limit(LIMIT_S).record(0.0)
    (name,) = _files(folder)
    assert name.startswith(f"{os.getpid()}-")
    assert name.endswith(SUFFIX)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_last_monitor_takes_the_file_with_it(folder, reader):
    first, second = reader.limit(LIMIT_S), reader.limit(LIMIT_S)
    first.record(SLOW_S)
    first.close()
    assert len(_files(folder)) == 1
    second.close()
    assert _files(folder) == []
    second.record(SLOW_S)
    assert (_files(folder), reader.share()) == ([], 1.0)
    reader.limit(LIMIT_S).record(SLOW_S)
    assert len(_files(folder)) == 1
    assert reader.share() == SHARE_MIN


def test_two_servers_in_one_process_see_each_other(folder, reader, clock):
    second = LiveTraffic(folder, clock)
    monitors = [second.limit(LIMIT_S), reader.limit(LIMIT_S)]
    for monitor in monitors:
        monitor.record(SLOW_S)
    assert reader.share() == second.share() == SHARE_MIN
    assert len(_files(folder)) == 2
    monitors[0].close()
    clock.advance(READ_S)
    third = LiveTraffic(folder, clock)
    assert third.share() == SHARE_MIN
    monitors[1].close()
    clock.advance(READ_S)
    assert third.share() == 1.0


def test_threads_record_at_once(folder, reader):
    """The share is that of all their requests, and there is one file."""
    monitor = reader.limit(LIMIT_S)
    threads = [threading.Thread(target=lambda: [monitor.record(0.0) for _ in range(500)]) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    assert reader.share() == 1.0
    monitor.record(SLOW_S)
    assert reader.share() == 0.5
    assert len(_files(folder)) == 1


# Several processes


def test_another_process_reads_the_share(start, reader, clock):
    server = start()
    server(f"record {SLOW_S}")
    assert reader.share() == SHARE_MIN
    server("record 0.0 2000")
    server(f"record {SLOW_S}")
    assert reader.share() == SHARE_MIN, "files are read again only after READ_S"
    clock.advance(READ_S)
    assert reader.share() == 0.5


@pytest.mark.slow
def test_share_is_the_smallest_of_all_processes(start, reader):
    for numbers in (f"record {SLOW_S}", "record 0.0 2000"):
        start()(numbers)
    server = start()
    server("record 0.0 2000")
    server(f"record {SLOW_S}")
    assert reader.share() == SHARE_MIN
    assert server("share") == str(SHARE_MIN)


@pytest.mark.slow
def test_share_is_one_after_idle_time_by_the_clock_of_the_machine(start, reader, clock):
    server = start()
    clock.advance(1000.0)
    server("at 1000.0")
    server(f"record {SLOW_S}")
    assert reader.share() == SHARE_MIN
    clock.advance(IDLE_S)
    assert reader.share() == 1.0
    server(f"at {clock.now()}")
    server(f"record {SLOW_S}")
    clock.advance(READ_S)
    assert reader.share() == SHARE_MIN


def test_killed_process_leaves_the_whole_share_and_no_file(start, folder, reader, clock):
    server = start()
    server(f"record {SLOW_S}")
    assert reader.share() == SHARE_MIN
    server.kill()
    assert len(_files(folder)) == 1
    clock.advance(READ_S)
    assert reader.share() == 1.0
    assert _files(folder) == []


@pytest.mark.slow
def test_closed_process_leaves_the_whole_share(start, folder, reader, clock):
    server = start()
    server(f"record {SLOW_S}")
    assert reader.share() == SHARE_MIN
    server("close")
    assert _files(folder) == []
    clock.advance(READ_S)
    assert reader.share() == 1.0


@pytest.mark.slow
def test_forked_child_publishes_for_itself(start, folder, reader, clock):
    """The child of a killed server neither holds the server's lock nor writes its file."""
    server = start()
    server("record 0.0 2000")
    child = int(server("fork"))
    try:
        assert server(f"child record {SLOW_S}") == "ok"
        assert len(_files(folder)) == 2
        assert reader.share() == 0.5
        server("child close")
        clock.advance(READ_S)
        assert reader.share() == 1.0
        server(f"record {SLOW_S}")
        clock.advance(READ_S)
        assert reader.share() == 0.5
        server.kill()
        clock.advance(READ_S)
        assert reader.share() == 1.0
        assert _files(folder) == []
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_forked_child_without_live_requests_holds_no_lock(start, folder, reader, clock):
    server = start()
    server(f"record {SLOW_S}")
    child = int(server("fork"))
    try:
        assert server("child share") == str(SHARE_MIN)
        server.kill()
        clock.advance(READ_S)
        assert reader.share() == 1.0
    finally:
        os.kill(child, signal.SIGKILL)


# What can go wrong


def _assert_alone(traffic: LiveTraffic, caplog: pytest.LogCaptureFixture, why: str) -> None:
    """Both directions fail quietly, with one warning."""
    monitor = traffic.limit(LIMIT_S)
    with caplog.at_level(logging.WARNING):
        assert traffic.share() == 1.0
        for _ in range(3):
            monitor.record(SLOW_S)
        assert traffic.share() == SHARE_MIN
    (record,) = caplog.records
    assert "not shared with other processes" in record.message
    assert why in record.message


def _foreign_folder(folder: Path) -> Path:
    """Return an existing folder of another user."""
    if os.geteuid() != 0:
        return Path("/")
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    return folder


def test_folder_of_another_user_is_ignored(folder, clock, caplog):
    foreign = _foreign_folder(folder)
    before = _files(foreign)
    _assert_alone(LiveTraffic(foreign, clock), caplog, "this user alone")
    assert _files(foreign) == before


def test_folder_that_others_can_write_is_ignored(folder, reader, caplog):
    folder.mkdir()
    folder.chmod(0o777)
    _assert_alone(reader, caplog, "this user alone")
    assert _files(folder) == []


def test_link_in_the_place_of_the_folder_is_ignored(folder, reader, tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    _assert_alone(reader, caplog, "this user alone")
    assert _files(tmp_path / "elsewhere") == []


def test_file_in_the_place_of_the_folder_is_ignored(folder, reader, caplog):
    folder.write_text("")
    _assert_alone(reader, caplog, "this user alone")


def test_missing_parent_leaves_the_process_alone(tmp_path, clock, caplog):
    """It is not tried again, since each trial would delay a live request."""
    traffic = LiveTraffic(tmp_path / "missing" / "headrace", clock)
    _assert_alone(traffic, caplog, "No such file")
    (tmp_path / "missing").mkdir()
    traffic.limit(LIMIT_S).record(SLOW_S)
    assert _files(tmp_path / "missing") == []


@pytest.mark.slow
def test_full_disk_leaves_the_process_alone(start, folder, reader):
    server = start()
    server("no_files")
    server(f"record {SLOW_S} 3")
    assert server("share") == str(SHARE_MIN)
    assert reader.share() == 1.0
    assert _files(folder) == []
    assert server.end().count("not shared with other processes") == 1


def test_stale_and_foreign_files_do_not_count(start, folder, reader, clock):
    """Files without a living owner are removed; other names stay."""
    server = start()
    server("record 0.0 2000")
    server(f"record {SLOW_S}")
    (folder / f"1-stale{SUFFIX}").write_bytes(b"headrace")
    (folder / "note.txt").write_text("")
    (folder / f"link{SUFFIX}").symlink_to(folder / "note.txt")
    assert reader.share() == 0.5
    assert f"1-stale{SUFFIX}" not in _files(folder)
    assert {"note.txt", f"link{SUFFIX}"} < set(_files(folder))


def test_stale_file_does_not_count_while_another_reader_looks_at_it(folder, clock, reader):
    LiveTraffic(folder, clock).limit(LIMIT_S).record(SLOW_S)
    (path,) = folder.iterdir()
    (folder / f"1-stale{SUFFIX}").write_bytes(path.read_bytes())
    path.unlink()
    with (folder / f"1-stale{SUFFIX}").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert reader.share() == 1.0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"headrace",
        live_traffic._LAYOUT.pack(b"headrace", 2, SHARE_MIN, 0.0),
        live_traffic._LAYOUT.pack(b"headrake", 1, SHARE_MIN, 0.0),
        live_traffic._LAYOUT.pack(b"headrace", 1, float("nan"), 0.0),
        live_traffic._LAYOUT.pack(b"headrace", 1, -1.0, 0.0),
    ],
)
def test_living_file_of_another_layout_does_not_count(folder, reader, clock, content):
    other = LiveTraffic(folder, clock)
    other.limit(LIMIT_S).record(SLOW_S)
    (name,) = _files(folder)
    (folder / name).write_bytes(content)
    assert reader.share() == 1.0
    assert _files(folder) == [name]


def test_layout_is_as_documented(folder, reader, clock):
    clock.advance(7.0)
    reader.limit(LIMIT_S).record(SLOW_S)
    (name,) = _files(folder)
    content = (folder / name).read_bytes()
    order = sys.byteorder
    assert len(content) == 32
    assert content[:8] == b"headrace"
    assert int.from_bytes(content[8:12], order) == 1
    assert memoryview(content)[16:].cast("d").tolist() == [SHARE_MIN, 7.0]


# The folder


def test_folder_is_below_the_runtime_folder_of_the_user(tmp_path):
    assert shared_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "headrace"


@pytest.mark.parametrize("runtime", ["", "relative", "/missing"])
def test_folder_is_temporary_without_a_runtime_folder(runtime, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    expected = tmp_path / f"headrace-{os.geteuid()}"
    assert shared_folder({"XDG_RUNTIME_DIR": runtime}) == expected
    assert shared_folder({}) == expected


def test_runtime_folder_of_another_user_is_not_used(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert shared_folder({"XDG_RUNTIME_DIR": str(_foreign_folder(folder))}).parent == tmp_path


def test_default_folder_is_that_of_the_environment(tmp_path, monkeypatch, clock):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    LiveTraffic(clock=clock).limit(LIMIT_S).record(SLOW_S)
    assert _files(tmp_path) == ["headrace"]
