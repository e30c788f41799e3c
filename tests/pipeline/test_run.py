import json

import pytest

from headrace.core.errors import (
    ConfigError,
    EmptySourceError,
    HeadraceError,
    LedgerError,
    ModelContractError,
    OutputExistsError,
    ResumeRefusedError,
)
from headrace.pipeline.run import Run
from headrace.pipeline.settings import MappingOptions, OutputSettings, StreamSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from pipeline.support import ScriptedPredictor

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


def test_failures_are_written_beside_their_part_with_position_reason_and_raw_bytes(stores):
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


def test_an_output_that_is_there_is_refused_then_overwritten(stores):
    put(stores, "a.csv", rows(20))
    run_over(stores).execute()
    with pytest.raises(OutputExistsError, match="--resume"):
        run_over(stores).execute()
    put(stores, "a.csv", rows(1))
    run_over(stores, if_exists="overwrite").execute()
    assert output(stores) == {"part-00000.csv": b"0.0\n"}


def test_overwriting_deletes_only_what_runs_write(stores):
    put(stores, "a.csv", rows(1))
    stores.for_uri(OUT).put(OUT + "notes.txt", b"mine")
    run_over(stores, if_exists="overwrite").execute()
    assert stores.for_uri(OUT).get(OUT + "notes.txt") == b"mine"


def test_a_finished_run_resumes_to_its_own_report_without_a_call(stores):
    put(stores, "a.csv", rows(20))
    first = run_over(stores).execute()
    predictor = ScriptedPredictor()
    again = run_over(stores, if_exists="resume", predictor=predictor).execute()
    assert predictor.requests == []
    assert again == first


class BrokenError(Exception):
    pass


class BreaksAt(ScriptedPredictor):
    """Raises at its n-th request."""

    def __init__(self, at: int, **more):
        super().__init__(**more)
        self.at = at

    def submit(self, request):
        if len(self.requests) == self.at:
            raise BrokenError
        return super().submit(request)


@pytest.mark.parametrize("checkpoint_s", [0.0, 1e9])
@pytest.mark.parametrize("at", [1, 3, 7, 11])
def test_a_broken_run_resumes_to_the_undisturbed_bytes(stores, at, checkpoint_s):
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


def test_a_run_that_broke_before_anything_was_written_leaves_nothing(stores):
    put(stores, "a.csv", rows(20))
    with pytest.raises(BrokenError):
        run_over(stores, predictor=BreaksAt(0)).execute()
    assert not list(stores.for_uri(OUT).list(OUT))
    assert run_over(stores).execute().rows_out == 20


@pytest.mark.parametrize(
    "changed",
    [{"identity": "another"}, {"source": "memory://in/a.csv"}, {"used": settings(join="input")}],
)
def test_a_run_with_another_model_source_or_setting_is_not_resumed(stores, changed):
    put(stores, "a.csv", rows(40))
    with pytest.raises(BrokenError):
        run_over(stores, predictor=BreaksAt(8)).execute()
    with pytest.raises(ResumeRefusedError, match=r"was .* is .*--overwrite"):
        run_over(stores, if_exists="resume", **changed).execute()


def test_an_object_that_changed_since_the_plan_is_reported_not_mixed(stores):
    put(stores, "a.csv", rows(40))
    put(stores, "b.csv", rows(4, 40))
    with pytest.raises(BrokenError):
        run_over(stores, predictor=BreaksAt(8)).execute()
    put(stores, "b.csv", rows(7))
    report = run_over(stores, if_exists="resume").execute()
    assert (report.rows_out, report.objects_broken, report.exit_code) == (40, 1, 1)


def test_a_checkpoint_keeps_a_slow_part(stores):
    put(stores, "a.csv", rows(40))
    used = settings(part_bytes_max=10_000, checkpoint_s=0.0)
    with pytest.raises(BrokenError):
        run_over(stores, predictor=BreaksAt(8), used=used).execute()
    predictor = ScriptedPredictor()
    run_over(stores, if_exists="resume", predictor=predictor, used=used).execute()
    assert len(predictor.requests) < 10
    assert output(stores)["part-00000.csv"].split() == [b"%.1f" % (2.0 * i) for i in range(40)]
    assert not [i for i in stores.for_uri(OUT).list(OUT) if "checkpoint" in i.uri]


def test_draining_leaves_a_ledger_to_go_on_from(stores):
    put(stores, "a.csv", rows(10))
    put(stores, "b.csv", rows(10, 10))
    run = run_over(stores)
    run.drain()
    report = run.execute()
    assert report.status == "drained"
    report = run_over(stores, if_exists="resume").execute()
    assert (report.status, report.rows_out) == ("complete", 20)
    assert b"".join(output(stores).values()).split() == [b"%.1f" % (2.0 * i) for i in range(20)]


def test_two_runs_on_one_destination_collide(stores):
    put(stores, "a.csv", rows(40))
    first, second = run_over(stores), run_over(stores, if_exists="resume", used=settings())

    class Meanwhile(ScriptedPredictor):
        def submit(self, request):
            if len(self.requests) == 4:
                second.execute()
            return super().submit(request)

    first._predictor = Meanwhile()
    with pytest.raises(LedgerError, match="another process"):
        first.execute()


def test_reading_what_it_writes_is_refused(stores):
    stores.for_uri(OUT).put(OUT + "x.csv", rows(1))
    with pytest.raises(ConfigError, match="must not read what it writes"):
        run_over(stores, source="memory://out/").execute()


@pytest.mark.parametrize("data", [b"", b"\n\n"])
def test_a_source_without_records_is_an_error_and_leaves_nothing(stores, data):
    put(stores, "a.csv", data)
    with pytest.raises(EmptySourceError, match="not one record"):
        run_over(stores).execute()
    assert not list(stores.for_uri(OUT).list(OUT))


def test_a_source_without_objects_is_an_error(stores):
    with pytest.raises(EmptySourceError, match="no object has this prefix"):
        run_over(stores).execute()


def test_a_model_that_loses_a_row_is_loud_and_what_was_before_is_kept(stores):
    put(stores, "a.csv", rows(40))
    predictor = ScriptedPredictor()
    predictor.drop_a_row_of_batch = 8
    with pytest.raises(ModelContractError, match="batch 8"):
        run_over(stores, predictor=predictor).execute()
    run_over(stores, if_exists="resume").execute()
    assert b"".join(output(stores).values()).split() == [b"%.1f" % (2.0 * i) for i in range(40)]


def test_a_broken_object_costs_itself_and_the_run_goes_on(stores):
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


def test_objects_are_appended_once_however_often_they_are_named(stores):
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


def test_what_the_first_record_decided_outlives_a_kill(stores):
    put(stores, "a.csv", rows(8) + b"1,2,3\n" + rows(40))
    used = StreamSettings(
        mapping=MappingOptions(columns=(0, 1)), output=OutputSettings(part_bytes_max=16, checkpoint_s=1e9)
    )
    with pytest.raises(BrokenError):
        run_over(stores, used=used, predictor=BreaksAt(6)).execute()
    report = run_over(stores, used=used, if_exists="resume").execute()
    assert (report.rows_out, report.rows_failed) == (48, 1)


def test_every_error_is_one_of_the_tree():
    assert issubclass(OutputExistsError, HeadraceError)
    assert ObjectInfo("memory://b/k", 1) == ObjectInfo("memory://b/k", 1)
