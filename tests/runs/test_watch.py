import threading

import pytest

from headrace.runs.run import Run, SourceWatcher
from headrace.runs.settings import RunSettings, StreamSettings, TransformSettings
from headrace.storage.resolve import MemoryStore, Stores
from headrace.testing import ManualClock
from runs.stream_support import ScriptedPredictor


class S3InMemory(Stores):
    """An ``s3://`` store in memory, where objects appear whole."""

    def __init__(self) -> None:
        super().__init__({})
        self.store = MemoryStore()

    def for_uri(self, uri):
        return self.store if "://" in uri else super().for_uri(uri)


def watch_over(
    source: str,
    stores: Stores,
    output: str = "memory://out/",
    *,
    clock: ManualClock | None = None,
    settings: RunSettings | None = None,
    **more,
) -> SourceWatcher:
    run = Run(
        source,
        output,
        stores=stores,
        predictor=ScriptedPredictor(),
        settings=settings or StreamSettings(),
        model_identity="m",
        **more,
    )
    return SourceWatcher(run, poll_s=7.0, clock=clock or ManualClock(auto=True))


@pytest.fixture
def stores() -> S3InMemory:
    return S3InMemory()


def test_poll_scores_new_objects(stores):
    watch = watch_over("memory://in/", stores)
    assert watch.tick() is None  # a prefix without objects is no error here
    stores.store.put("memory://in/a.csv", b"1,1\n")
    assert watch.tick().records_in == 1
    assert watch.tick() is None
    stores.store.put("memory://in/b.csv", b"2,1\n3,1\n")
    assert watch.tick().records_in == 3
    # A rewritten object has another ETag, so it is a new object.
    stores.store.put("memory://in/a.csv", b"9,1\n")
    assert watch.tick().records_in == 4


def test_restart_continues_with_the_same_ledger(stores):
    stores.store.put("memory://in/a.csv", b"1,1\n")
    watch_over("memory://in/", stores).tick()
    later = watch_over("memory://in/", stores, if_exists="resume")
    assert later.tick() is None
    stores.store.put("memory://in/b.csv", b"2,1\n")
    assert later.tick().records_in == 2


def test_poll_uses_the_data_type_of_the_run(stores):
    watch = watch_over("memory://in/day", stores, settings=StreamSettings(data_type="prefix"))
    assert watch.tick() is None
    stores.store.put("memory://in/day-1.csv", b"1,1\n")
    stores.store.put("memory://in/night.csv", b"2,1\n")
    assert watch.tick().records_in == 1


def test_poll_writes_an_output_for_each_new_object(stores):
    watch = watch_over("memory://in/", stores, settings=TransformSettings())
    assert watch.tick() is None
    stores.store.put("memory://in/a.csv", b"1,1\n")
    assert watch.tick().objects == 1
    stores.store.put("memory://in/day/b.csv", b"2,1\n3,1\n")
    assert watch.tick().objects == 2
    # An output has one owner, so a rewritten object is not scored again.
    stores.store.put("memory://in/a.csv", b"9,1\n")
    assert watch.tick() is None
    found = {name: stores.store.get(f"memory://out/{name}") for name in ("a.csv.out", "day/b.csv.out")}
    assert found == {"a.csv.out": b"2.0\n", "day/b.csv.out": b"4.0\n6.0\n"}


def test_local_file_is_scored_when_two_polls_see_it_unchanged(tmp_path):
    folder, stores = tmp_path / "in", Stores()
    folder.mkdir()
    watch = watch_over(f"{folder}/", stores)
    (folder / "a.csv").write_bytes(b"1,1\n")
    assert watch.tick() is None
    (folder / "a.csv").write_bytes(b"1,1\n2,1\n")  # a file that is still being written
    assert watch.tick() is None
    assert watch.tick().records_in == 2


def test_serve_polls_until_stopped_and_reports(stores):
    clock = ManualClock()
    watch = watch_over("memory://in/", stores, clock=clock)
    reports = []
    scored = threading.Event()

    def report(done):
        reports.append(done.records_in)
        scored.set()

    serving = threading.Thread(target=watch.serve, args=(report,))
    serving.start()
    clock.wait_for_sleepers()
    stores.store.put("memory://in/a.csv", b"1,1\n")
    clock.advance(7.0)
    assert scored.wait(10)
    watch.stop()
    serving.join(10)
    assert not serving.is_alive()
    assert reports == [1]
    assert set(clock.slept_s) == {7.0}
