import json

import pytest

from cases import for_each
from headrace.core.errors import (
    ConfigError,
    EmptySourceError,
    HeadraceError,
    LedgerError,
    LimitError,
    ModelContractError,
    OutputExistsError,
    ResumeRefusedError,
    UnavailableError,
)
from headrace.formats.read_options import ReadOptions
from headrace.runs.output_settings import OutputSettings
from headrace.runs.run import Run
from headrace.runs.settings import FlowSettings, MappingOptions, StreamSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import MemoryStore, Stores
from headrace.testing import ManualClock
from runs.stream_support import ScriptedPredictor, SummingPredictor

OUT = "memory://out/run/"


@pytest.fixture
def stores() -> Stores:
    return Stores()


def put(stores: Stores, name: str, data: bytes) -> str:
    uri = f"memory://in/{name}"
    stores.for_uri(uri).put(uri, data)
    return uri


def rows(count: int, start: int = 0) -> bytes:
    return b"".join(b"%d,1\n" % i for i in range(start, start + count))


def settings(**output) -> StreamSettings:
    return StreamSettings(output=OutputSettings(**{"part_bytes_max": 40, **output}))


def run_over(
    stores: Stores, *, predictor=None, source="memory://in/", used=None, identity="m", **more
) -> Run:
    return Run(
        source,
        OUT,
        stores=stores,
        predictor=predictor or ScriptedPredictor(),
        settings=used or settings(),
        model_identity=identity,
        **more,
    )


def output(stores: Stores) -> dict[str, bytes]:
    store = stores.for_uri(OUT)
    return {i.uri.removeprefix(OUT): store.get(i.uri) for i in store.list(OUT + "part-")}


def test_predictions_are_published_in_parts_in_order(stores):
    put(stores, "a.csv", rows(10))
    put(stores, "b.csv", rows(10, 10))
    report = run_over(stores).execute()
    parts = output(stores)
    assert len(parts) > 1
    assert b"".join(parts.values()).split() == [b"%.1f" % (2.0 * i) for i in range(20)]
    assert (report.records_in, report.rows_out, report.rows_failed, report.parts) == (20, 20, 0, len(parts))
    assert report.exit_code == 0


def test_failures_are_written_with_position_reason_and_raw_bytes(stores):
    put(stores, "a.csv", b"0,1\nx,1\n2\n3,1\n")
    report = run_over(stores, used=settings(part_bytes_max=10_000)).execute()
    parts = output(stores)
    assert set(parts) == {"part-00000.csv", "part-00000.failed.jsonl"}
    failed = [json.loads(line) for line in parts["part-00000.failed.jsonl"].splitlines()]
    assert [(f["record"], f["line"], f["byte"], f["raw"]) for f in failed] == [
        (1, 2, 4, "x,1"),
        (2, 3, 8, "2"),
    ]
    assert all(f["object"] == "memory://in/a.csv" and f["reason"] for f in failed)
    assert (report.records_in, report.rows_out, report.rows_failed, report.exit_code) == (4, 2, 2, 3)


def test_joined_output_keeps_the_input_byte_for_byte(stores):
    put(stores, "a.csv", b'"0",1\r\n1.50, 1\r\n')
    run_over(stores, used=settings(join="input")).execute()
    assert output(stores)["part-00000.csv"] == b'"0",1,0.0\n1.50, 1,3.0\n'


def test_existing_output_is_refused_or_overwritten(stores):
    put(stores, "a.csv", rows(20))
    run_over(stores).execute()
    with pytest.raises(OutputExistsError, match="--resume"):
        run_over(stores).execute()
    put(stores, "a.csv", rows(1))
    run_over(stores, if_exists="overwrite").execute()
    assert output(stores) == {"part-00000.csv": b"0.0\n"}


def test_overwrite_deletes_only_run_objects(stores):
    put(stores, "a.csv", rows(1))
    names = ("notes.txt", "part-list.csv", "part-00000.csv.bak")
    for name in names:
        stores.for_uri(OUT).put(OUT + name, b"mine")
    run_over(stores).execute()
    run_over(stores, if_exists="overwrite").execute()
    assert [stores.for_uri(OUT).get(OUT + name) for name in names] == [b"mine"] * 3


def test_finished_run_resumes_to_its_report_without_a_call(stores):
    put(stores, "a.csv", rows(20))
    first = run_over(stores).execute()
    predictor = ScriptedPredictor()
    again = run_over(stores, if_exists="resume", predictor=predictor).execute()
    assert predictor.requests == []
    assert again == first


class BrokenError(Exception):
    pass


class BreaksAt(ScriptedPredictor):
    """A predictor that raises at its n-th request."""

    def __init__(self, at: int, **more):
        super().__init__(**more)
        self.at = at

    def submit(self, request):
        if len(self.requests) == self.at:
            raise BrokenError
        return super().submit(request)


@for_each("checkpoint_s", [0.0, 1e9])
@for_each("at", [1, 3, 7, 11])
def test_broken_run_resumes_to_the_undisturbed_bytes(at, checkpoint_s):
    stores = Stores()
    for name, start in (("a", 0), ("b", 20), ("c", 40)):
        put(stores, f"{name}.csv", rows(20, start) + b"bad,1\n")
    run_over(stores).execute()
    expected = output(stores)
    used = settings(checkpoint_s=checkpoint_s)
    with pytest.raises(BrokenError):
        run_over(stores, if_exists="overwrite", predictor=BreaksAt(at), used=used).execute()
    report = run_over(stores, if_exists="resume", used=used).execute()
    assert output(stores) == expected
    assert (report.records_in, report.rows_out, report.rows_failed) == (63, 60, 3)


def test_run_broken_before_any_write_leaves_nothing(stores):
    put(stores, "a.csv", rows(20))
    with pytest.raises(BrokenError):
        run_over(stores, predictor=BreaksAt(0)).execute()
    assert not list(stores.for_uri(OUT).list(OUT))
    assert run_over(stores).execute().rows_out == 20


@for_each(
    "changed",
    [{"identity": "another"}, {"source": "memory://in/a.csv"}, {"used": settings(join="input")}],
)
def test_run_with_another_model_source_or_setting_is_refused(changed):
    stores = Stores()
    put(stores, "a.csv", rows(40))
    with pytest.raises(BrokenError):
        run_over(stores, predictor=BreaksAt(8)).execute()
    with pytest.raises(ResumeRefusedError, match=r"was .* is .*--overwrite"):
        run_over(stores, if_exists="resume", **changed).execute()


def test_object_changed_since_the_plan_is_reported(stores):
    put(stores, "a.csv", rows(40))
    put(stores, "b.csv", rows(4, 40))
    with pytest.raises(BrokenError):
        run_over(stores, predictor=BreaksAt(8)).execute()
    put(stores, "b.csv", rows(7))
    report = run_over(stores, if_exists="resume").execute()
    assert (report.rows_out, report.objects_broken, report.exit_code) == (40, 1, 1)


def test_checkpoint_keeps_a_slow_part(stores):
    put(stores, "a.csv", rows(40))
    used = settings(part_bytes_max=10_000, checkpoint_s=0.0)
    with pytest.raises(BrokenError):
        run_over(stores, predictor=BreaksAt(8), used=used).execute()
    predictor = ScriptedPredictor()
    run_over(stores, if_exists="resume", predictor=predictor, used=used).execute()
    assert len(predictor.requests) < 10
    assert output(stores)["part-00000.csv"].split() == [b"%.1f" % (2.0 * i) for i in range(40)]
    assert not [i for i in stores.for_uri(OUT).list(OUT) if "checkpoint" in i.uri]


def test_drained_run_can_be_resumed(stores):
    put(stores, "a.csv", rows(10))
    put(stores, "b.csv", rows(10, 10))
    run = run_over(stores)
    run.drain()
    report = run.execute()
    assert report.status == "drained"
    report = run_over(stores, if_exists="resume").execute()
    assert (report.status, report.rows_out) == ("complete", 20)
    assert b"".join(output(stores).values()).split() == [b"%.1f" % (2.0 * i) for i in range(20)]


def test_concurrent_runs_on_one_destination_are_detected(stores):
    put(stores, "a.csv", rows(40))
    first, second = run_over(stores), run_over(stores, if_exists="resume", used=settings())

    class Meanwhile(ScriptedPredictor):
        def submit(self, request):
            if len(self.requests) == 4:
                second.execute()
            return super().submit(request)

    first._scoring._predictor = Meanwhile()
    with pytest.raises(LedgerError, match="another process"):
        first.execute()


def test_reading_its_own_output_is_refused(stores):
    stores.for_uri(OUT).put(OUT + "x.csv", rows(1))
    with pytest.raises(ConfigError, match="must not read what it writes"):
        run_over(stores, source="memory://out/").execute()


@for_each("data", [b"", b"\n\n"])
def test_source_without_records_is_a_complete_run(data):
    stores = Stores()
    put(stores, "a.csv", data)
    report = run_over(stores).execute()
    assert (report.status, report.records_in, report.parts, report.objects_done) == ("complete", 0, 0, 1)
    assert output(stores) == {}
    assert run_over(stores, if_exists="resume").execute() == report


def test_source_without_objects_raises(stores):
    with pytest.raises(EmptySourceError, match="no object has this prefix"):
        run_over(stores).execute()


def test_missing_output_row_raises_and_keeps_earlier_output(stores):
    put(stores, "a.csv", rows(40))
    predictor = ScriptedPredictor()
    predictor.drop_a_row_of_batch = 8
    with pytest.raises(ModelContractError, match="batch 8"):
        run_over(stores, predictor=predictor).execute()
    run_over(stores, if_exists="resume").execute()
    assert b"".join(output(stores).values()).split() == [b"%.1f" % (2.0 * i) for i in range(40)]


def test_broken_object_fails_alone(stores):
    import gzip

    whole = gzip.compress(rows(8))
    put(stores, "a.csv.gz", whole[:-12])
    put(stores, "b.csv", rows(4, 100))
    report = run_over(stores).execute()
    assert report.objects_broken == 1
    assert report.exit_code == 1
    assert b"".join(v for k, v in output(stores).items() if k.endswith(".csv")).split()[-1] == b"206.0"
    failed = [json.loads(x) for k, v in output(stores).items() if "failed" in k for x in v.splitlines()]
    assert [f["kind"] for f in failed] == ["object"]
    assert "a.csv.gz" in failed[0]["reason"]


def test_appended_objects_are_scored_once(stores):
    run = run_over(stores)
    store = stores.for_uri("memory://in/")
    put(stores, "a.csv", rows(3))
    a = store.head("memory://in/a.csv")
    assert run.append([a]).records_in == 3
    assert run.append([a, a]) is None
    put(stores, "b.csv", rows(2, 3))
    report = run.append([a, store.head("memory://in/b.csv")])
    assert report.records_in == 5
    later = run_over(stores, if_exists="resume")
    assert later.append([a, store.head("memory://in/b.csv")]) is None
    assert b"".join(output(stores).values()).split() == [b"%.1f" % (2.0 * i) for i in range(5)]


def test_decisions_of_the_first_record_survive_a_kill(stores):
    put(stores, "a.csv", rows(8) + b"1,2,3\n" + rows(40))
    used = StreamSettings(
        mapping=MappingOptions(columns=(0, 1)), output=OutputSettings(part_bytes_max=16, checkpoint_s=1e9)
    )
    with pytest.raises(BrokenError):
        run_over(stores, used=used, predictor=BreaksAt(6)).execute()
    report = run_over(stores, used=used, if_exists="resume").execute()
    assert (report.rows_out, report.rows_failed) == (48, 1)


def test_every_error_is_a_headrace_error():
    assert issubclass(OutputExistsError, HeadraceError)
    assert ObjectInfo("memory://b/k", 1) == ObjectInfo("memory://b/k", 1)


# Append


def head(stores: Stores, name: str) -> ObjectInfo:
    uri = f"memory://in/{name}"
    return stores.for_uri(uri).head(uri)


def doubled(stores: Stores) -> list[float]:
    return [float(v) for k, part in output(stores).items() if k.endswith(".csv") for v in part.split()]


def test_object_named_twice_in_one_append_is_scored_once(stores):
    put(stores, "a.csv", rows(3))
    run = run_over(stores)
    assert run.append([head(stores, "a.csv"), head(stores, "a.csv")]).records_in == 3
    assert doubled(stores) == [0.0, 2.0, 4.0]


@for_each("checkpoint_s", [0.0, 1e9])
@for_each("at", [1, 2, 6, 9])
def test_same_run_continues_after_an_error(at, checkpoint_s):
    """A service that appends for weeks must survive a temporary failure of its endpoint."""
    stores = Stores()
    for number, name in enumerate("abc"):
        put(stores, f"{name}.csv", rows(13, 13 * number))
    used = settings(checkpoint_s=checkpoint_s)
    predictor = BreaksAt(at)
    run = run_over(stores, predictor=predictor, used=used)
    reports = []
    for name in "abc":
        try:
            reports.append(run.append([head(stores, f"{name}.csv")]))
        except BrokenError:
            predictor.at = -1
            reports.append(run.append([head(stores, f"{name}.csv")]))
    assert doubled(stores) == [2.0 * i for i in range(39)]
    assert [r.records_in for r in reports] == [13, 26, 39]
    assert [r.objects_done for r in reports] == [1, 2, 3]


def test_run_broken_at_its_first_append_begins_anew(stores):
    put(stores, "a.csv", rows(3))
    predictor = BreaksAt(0)
    run = run_over(stores, predictor=predictor)
    with pytest.raises(BrokenError):
        run.append([head(stores, "a.csv")])
    assert not list(stores.for_uri(OUT).list(OUT))
    predictor.at = -1
    assert run.append([head(stores, "a.csv")]).records_in == 3
    assert run_over(stores, if_exists="resume").append([]) is None


def test_unreadable_appended_object_fails_alone(stores):
    run = run_over(stores)
    put(stores, "_SUCCESS", b"")
    put(stores, "empty.tar", bytes(1024))
    put(stores, "a.csv", rows(2))
    assert run.append([head(stores, "empty.tar")]).objects_broken == 1
    assert run.append([head(stores, "_SUCCESS")]).objects_broken == 2
    assert run.append([head(stores, "a.csv")]).records_in == 2
    assert "the name does not determine the format" in output(stores)["part-00001.failed.jsonl"].decode()


def test_object_of_unknown_format_is_refused_before_scoring(stores):
    put(stores, "a.csv", rows(40))
    put(stores, "z", rows(1))
    predictor = ScriptedPredictor()
    with pytest.raises(ConfigError, match="memory://in/z: the name does not determine the format"):
        run_over(stores, predictor=predictor).execute()
    assert predictor.requests == []


def test_append_report_has_its_own_rates_and_total_counts(stores):
    clock = ManualClock()

    class TakesASecond(ScriptedPredictor):
        def submit(self, request):
            clock.advance(1.0)
            return super().submit(request)

    put(stores, "a.csv", rows(40))
    put(stores, "b.csv", rows(4))
    run = run_over(stores, predictor=TakesASecond(), clock=clock)
    first, second = run.append([head(stores, "a.csv")]), run.append([head(stores, "b.csv")])
    assert (first.rows_per_s, second.rows_per_s) == (4.0, 4.0)
    assert (second.records_in, second.objects_done, second.elapsed_s) == (44, 2, 1.0)


def test_ledger_reads_per_append_are_constant(stores):
    """A watch runs for months, so the reads must not grow with the ledger."""

    class Counting(MemoryStore):
        reads = 0

        def get(self, uri):
            self.reads += 1
            return super().get(uri)

    class CountingStores(Stores):
        def for_uri(self, uri):
            return store

    store, reads = Counting(), []
    run = run_over(CountingStores())
    for number in range(100):
        put(CountingStores(), f"{number:03d}.csv", rows(1))
        before = store.reads
        run.append([head(CountingStores(), f"{number:03d}.csv")])
        reads.append(store.reads - before)
    assert reads[99] == reads[10]


# Resume


def test_resumed_report_counts_objects_of_the_whole_run(stores):
    for number, name in enumerate("abc"):
        put(stores, f"{name}.csv", rows(12, 12 * number))
    with pytest.raises(BrokenError):
        run_over(stores, predictor=BreaksAt(7)).execute()
    report = run_over(stores, if_exists="resume").execute()
    assert (report.objects_done, report.records_in, report.resumed) == (3, 36, True)


@for_each("at", range(1, 15))
def test_resumed_run_keeps_the_decisions_of_the_first_file(at):
    """Headers, widths and formats differ from file to file; the first file decides."""
    stores = Stores()
    put(stores, "a.csv", b"x,y\n" + rows(6))
    put(stores, "b.csv", b"y,x\n" + rows(6, 6))
    put(stores, "c.csv", b"p,q,r\n1,2,3\n")
    put(stores, "d.jsonl", b'[1, 2]\n{"x": 3}\n' + b"[7, 8]\n" * 4)
    put(stores, "e.jsonl", b'{"x": [1, 2]}\n[5, 6]\n' * 4)
    used = StreamSettings(
        read=ReadOptions(header="names"),
        output=OutputSettings(format="jsonl", part_bytes_max=30, join="input"),
        flow=FlowSettings(window_bytes_max=1),  # so that the feeder is not far ahead of the commits
    )
    broken = run_over(stores, used=used, predictor=BreaksAt(at, rows_max=2))
    if at < 14:
        with pytest.raises(BrokenError):
            broken.execute()
    resuming = ScriptedPredictor(rows_max=2)
    report = run_over(stores, used=used, predictor=resuming, if_exists="resume").execute()
    resumed = output(stores)
    undisturbed = ScriptedPredictor(rows_max=2)
    run_over(stores, used=used, predictor=undisturbed, if_exists="overwrite").execute()
    assert resumed == output(stores)
    assert (report.rows_out, report.rows_failed) == (21, 6)
    assert len(undisturbed.requests) == 14


def test_first_error_of_the_destination_is_raised(stores):
    """The attempts to keep the output fail as well, and must not hide the first error."""
    put(stores, "a.csv", rows(40))

    class Full(MemoryStore):
        full = False

        def writer(self, uri):
            self.full = True
            raise UnavailableError(uri, "the disk is full")

        def put(self, uri, data):
            if self.full:
                raise UnavailableError(uri, "another error")
            super().put(uri, data)

        def list(self, prefix):
            if self.full:
                raise UnavailableError(prefix, "yet another error")
            return super().list(prefix)

    class FullStores(Stores):
        def for_uri(self, uri):
            return full if uri.startswith(OUT) else super().for_uri(uri)

    full = Full()
    both = FullStores()
    put(both, "a.csv", rows(40))
    with pytest.raises(UnavailableError, match="the disk is full"):
        run_over(both).execute()


def test_reading_its_own_output_is_refused_for_any_path_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-x.csv").write_bytes(rows(1))
    stores = Stores()
    run = Run(
        "./",
        "out",
        stores=stores,
        predictor=ScriptedPredictor(),
        settings=settings(),
        model_identity="m",
        if_exists="overwrite",
    )
    (tmp_path / "out" / "x.csv").write_bytes(rows(1))
    with pytest.raises(ConfigError, match="must not read what it writes"):
        run.execute()


@for_each("failing", [1, 2, 4])
def test_nothing_after_an_unpublished_part_is_kept(failing):
    """Not even as a checkpoint: a resumption writes that part again, and the parts after it."""
    stores = Stores()

    class Fails(MemoryStore):
        writers = 0

        def writer(self, uri):
            self.writers += 1
            if self.writers == failing:
                raise UnavailableError(uri, "away")
            return super().writer(uri)

    class FailingStores(Stores):
        def for_uri(self, uri):
            return store if uri.startswith(OUT) else super().for_uri(uri)

    store, failing_stores = Fails(), FailingStores()
    for place in (stores, failing_stores):
        put(place, "a.csv", rows(60))
    run_over(stores).execute()
    used = settings(checkpoint_s=0.0)
    with pytest.raises(UnavailableError, match="away"):
        run_over(failing_stores, used=used).execute()
    assert not list(store.list(f"{OUT}_headrace/part-0000{failing}.checkpoint"))
    assert run_over(failing_stores, used=used, if_exists="resume").execute().rows_out == 60
    assert output(failing_stores) == output(stores)


# Sequences


def sequence_rows(count: int, *, users: int = 5, bad_every: int = 11, ends_every: int = 7) -> bytes:
    """Return records of users in an irregular order, with some bad records and some ends."""
    lines = []
    for i in range(count):
        user = f"u{(i * i + i // 3) % users}"
        lines.append(f"{user},{int(i % ends_every == 3)},{'bad' if i % bad_every == 5 else i}")
    return ("\n".join(lines) + "\n").encode()


def running_sums(*objects: bytes, by_object: bool = False) -> list[float]:
    """Return the running sums of the records of `sequence_rows`."""
    sums: dict[str, float] = {}
    found = []
    for data in objects:
        for line in data.decode().splitlines():
            user, end, value = line.split(",")
            if by_object:
                user, end = "object", "0"
            if value != "bad":
                sums[user] = sums.get(user, 0.0) + float(value)
                found.append(sums[user])
            if end == "1":
                sums.pop(user, None)
        if by_object:
            sums.clear()
    return found


BY_USER = MappingOptions(sequence=0, sequence_end=1)
BY_USER_FOR_EVER = MappingOptions(sequence=0, columns=(2,))
BY_OBJECT = MappingOptions(sequence="@object", columns=(2,))


def sequence_settings(mapping: MappingOptions = BY_USER, *, live_max=None, **output) -> StreamSettings:
    flow = FlowSettings(sequences_live_max=live_max)
    return StreamSettings(
        mapping=mapping, flow=flow, output=OutputSettings(**{"part_bytes_max": 60, **output})
    )


class BreaksSummingAt(SummingPredictor):
    """A predictor that loses its states at its n-th request, like a killed process."""

    def __init__(self, at: int):
        super().__init__()
        self.at = at

    def submit(self, request):
        if len(self.asked) == self.at:
            raise BrokenError
        return super().submit(request)


def predictions_of(stores: Stores) -> list[float]:
    return [float(v) for k, part in output(stores).items() if k.endswith(".csv") for v in part.split()]


@for_each("checkpoint_s", [0.0, 1e9])
@for_each("mapping", [BY_USER, BY_USER_FOR_EVER, BY_OBJECT])
@for_each("at", [2, 5, 9, 13, 17])
def test_broken_run_of_sequences_resumes_to_the_undisturbed_bytes(at, mapping, checkpoint_s):
    stores = Stores()
    objects = [sequence_rows(n) for n in (33, 3, 40)]
    for name, data in zip("abc", objects, strict=True):
        put(stores, f"{name}.csv", data)
    used = sequence_settings(mapping, checkpoint_s=checkpoint_s)
    whole = run_over(stores, used=used, predictor=SummingPredictor()).execute()
    expected = output(stores)
    if mapping is not BY_USER_FOR_EVER:
        assert predictions_of(stores) == running_sums(*objects, by_object=mapping is BY_OBJECT)
    assert (whole.records_in, whole.records_replayed) == (76, 0)

    with pytest.raises(BrokenError):
        run_over(stores, used=used, predictor=BreaksSummingAt(at), if_exists="overwrite").execute()
    # Another process, without the states, fails once more.
    with pytest.raises(BrokenError):
        run_over(stores, used=used, predictor=BreaksSummingAt(1), if_exists="resume").execute()
    predictor = SummingPredictor()
    report = run_over(stores, used=used, predictor=predictor, if_exists="resume").execute()
    assert output(stores) == expected
    assert (report.records_in, report.rows_out, report.rows_failed) == (76, whole.rows_out, whole.rows_failed)
    assert report.rows_failed == 7
    asked = sum(r.rows for r in predictor.asked)
    assert asked <= report.rows_out + report.records_replayed


def test_resume_replays_only_the_unfinished_object(stores):
    for name in "ab":
        put(stores, f"{name}.csv", rows(40))
    used = sequence_settings(
        MappingOptions(sequence="@object", columns=(0,)), checkpoint_s=0.0, part_bytes_max=1000
    )
    with pytest.raises(BrokenError):
        run_over(stores, used=used, predictor=BreaksSummingAt(12)).execute()
    predictor = SummingPredictor()
    report = run_over(stores, used=used, predictor=predictor, if_exists="resume").execute()
    assert report.records_replayed in range(1, 9)
    assert {i for r in predictor.asked for i in r["sequence_id"]} == {"memory://in/b.csv"}


def test_resume_replays_from_the_oldest_unfinished_sequence(stores):
    lines = [f"u{i // 10},{int(i % 10 == 9)},{i}" for i in range(200)]
    put(stores, "a.csv", "\n".join(lines).encode())
    used = sequence_settings(checkpoint_s=0.0)
    run_over(stores, used=used, predictor=SummingPredictor()).execute()
    expected = output(stores)
    with pytest.raises(BrokenError):
        run_over(stores, used=used, predictor=BreaksSummingAt(40), if_exists="overwrite").execute()
    report = run_over(stores, used=used, predictor=SummingPredictor(), if_exists="resume").execute()
    assert output(stores) == expected
    assert report.records_replayed <= 12


def test_resume_is_refused_if_replayed_records_changed(stores):
    put(stores, "a.csv", sequence_rows(20))
    put(stores, "b.csv", sequence_rows(40))
    used = sequence_settings(BY_USER_FOR_EVER, checkpoint_s=0.0)
    with pytest.raises(BrokenError):
        run_over(stores, used=used, predictor=BreaksSummingAt(9)).execute()
    before = output(stores)
    put(stores, "a.csv", sequence_rows(19))
    with pytest.raises(ResumeRefusedError, match=r"states of its sequences cannot be rebuilt.*--overwrite"):
        run_over(stores, used=used, predictor=SummingPredictor(), if_exists="resume").execute()
    assert output(stores) == before


def test_run_with_too_many_sequences_resumes_with_a_higher_limit(stores):
    data = b"".join(b"u%d,0,%d\n" % (i // 2, i) for i in range(60))
    put(stores, "a.csv", data)
    used = sequence_settings(live_max=20, checkpoint_s=0.0)
    predictor = SummingPredictor()
    with pytest.raises(LimitError, match=r"the limit of 20 unfinished.*--sequence-end"):
        run_over(stores, used=used, predictor=predictor).execute()
    assert predictor.live_most <= 20
    assert predictions_of(stores)
    report = run_over(
        stores, used=sequence_settings(live_max=30), predictor=SummingPredictor(), if_exists="resume"
    ).execute()
    assert (report.records_in, report.rows_out) == (60, 60)
    assert predictions_of(stores) == running_sums(data)


def test_column_sequences_continue_in_appended_objects_without_replay(stores):
    objects = [sequence_rows(n) for n in (9, 14, 5)]
    predictor = SummingPredictor()
    run = run_over(stores, used=sequence_settings(), predictor=predictor)
    for name, data in zip("abc", objects, strict=True):
        put(stores, f"{name}.csv", data)
        report = run.append([head(stores, f"{name}.csv")])
    assert report.records_replayed == 0
    assert predictions_of(stores) == running_sums(*objects)
    # Another process rebuilds the states.
    put(stores, "d.csv", sequence_rows(12))
    later = run_over(stores, used=sequence_settings(), predictor=SummingPredictor(), if_exists="resume")
    later.append([head(stores, f"{name}.csv") for name in "abcd"])
    assert predictions_of(stores) == running_sums(*objects, sequence_rows(12))


def test_broken_append_replays_its_sequences_in_the_same_process(stores):
    objects = [sequence_rows(n) for n in (13, 25)]
    predictor = BreaksSummingAt(5)
    run = run_over(stores, used=sequence_settings(checkpoint_s=0.0), predictor=predictor)
    put(stores, "a.csv", objects[0])
    run.append([head(stores, "a.csv")])
    put(stores, "b.csv", objects[1])
    with pytest.raises(BrokenError):
        run.append([head(stores, "b.csv")])
    predictor.at = -1
    run.append([])
    assert predictions_of(stores) == running_sums(*objects)


def test_drained_run_of_sequences_resumes_with_their_states(stores):
    data = sequence_rows(60)
    put(stores, "a.csv", data)
    used = sequence_settings(checkpoint_s=0.0)

    class Drains(SummingPredictor):
        def submit(self, request):
            if len(self.asked) == 6:
                run.drain()
            return super().submit(request)

    run = run_over(stores, used=used, predictor=Drains())
    assert run.execute().status == "drained"
    report = run_over(stores, used=used, predictor=SummingPredictor(), if_exists="resume").execute()
    assert report.status == "complete"
    assert report.records_replayed > 0
    assert predictions_of(stores) == running_sums(data)


def test_run_drained_during_replay_writes_nothing_wrong(stores):
    data = sequence_rows(60)
    put(stores, "a.csv", data)
    used = sequence_settings(BY_USER_FOR_EVER, checkpoint_s=0.0)
    run_over(stores, used=used, predictor=SummingPredictor()).execute()
    expected = output(stores)
    with pytest.raises(BrokenError):
        run_over(stores, used=used, predictor=BreaksSummingAt(10), if_exists="overwrite").execute()

    class Drains(SummingPredictor):
        def submit(self, request):
            if len(self.asked) == 2:
                run.drain()
            return super().submit(request)

    run = run_over(stores, used=used, predictor=Drains(), if_exists="resume")
    assert run.execute().status == "drained"
    run_over(stores, used=used, predictor=SummingPredictor(), if_exists="resume").execute()
    assert output(stores) == expected


def test_stateless_model_is_refused_before_any_write(stores):
    put(stores, "a.csv", sequence_rows(3))
    with pytest.raises(ConfigError, match="declares no step"):
        run_over(stores, used=sequence_settings()).execute()
    assert not list(stores.for_uri(OUT).list(OUT))


def test_refused_row_fails_alone_and_its_sequence_continues(stores):
    data = sequence_rows(30)
    put(stores, "a.csv", data)
    predictor = SummingPredictor()
    predictor.refuse_values = {4.0, 8.0}
    report = run_over(stores, used=sequence_settings(), predictor=predictor).execute()
    assert (report.records_in, report.rows_failed) == (30, 3 + 2)
    without = b"\n".join(
        b",".join([*line.split(b",")[:2], b"bad"]) if line.endswith((b",4", b",8")) else line
        for line in data.splitlines()
    )
    assert predictions_of(stores) == running_sums(without)


def test_finished_appended_object_is_not_replayed(stores):
    predictor = SummingPredictor()
    run = run_over(stores, used=sequence_settings(BY_OBJECT), predictor=predictor)
    objects = [sequence_rows(n) for n in (6, 7)]
    for name, data in zip("ab", objects, strict=True):
        put(stores, f"{name}.csv", data)
        run.append([head(stores, f"{name}.csv")])
        assert predictor.sums == {}
    put(stores, "c.csv", sequence_rows(5))
    later = run_over(
        stores, used=sequence_settings(BY_OBJECT), predictor=SummingPredictor(), if_exists="resume"
    )
    assert later.append([head(stores, "c.csv")]).records_replayed == 0
    assert predictions_of(stores) == running_sums(*objects, sequence_rows(5), by_object=True)
