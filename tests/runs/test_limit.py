"""Runs with a limit: the first records of the source, for streams and transforms, with any workers."""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
import levels
from cases import for_each
from formats.framed_files import recordio
from headrace.core.errors import ConfigError, ResumeRefusedError
from headrace.runs.ledger import Ledger
from headrace.runs.limit import limit_objects
from headrace.runs.objects import plan_objects, select_infos
from headrace.runs.output_settings import OutputSettings
from headrace.runs.records import PlannedObject, ReadBound
from headrace.runs.run import Run
from headrace.runs.settings import MappingOptions, StreamSettings, SubsetSettings
from headrace.storage.resolve import Stores
from runs.stream_support import ScriptedPredictor, SummingPredictor
from runs.support import (
    IN,
    OUT,
    allow_small_tasks,
    failed_lines,
    make_settings,
    make_transform,
    outputs,
    put,
    rows,
    shuffle,
    tar,
)

RECORDS = st.sampled_from([b"1,2\n", b"-3,1\n", b"x,1\n", b"7\n", b'"4\n",5\n', b"\n", b"8,1\r\n"])
OBJECTS = st.lists(
    st.tuples(
        st.lists(RECORDS, max_size=12).map(b"".join), st.sampled_from(["plain", "gz", "broken", "tar"])
    ),
    min_size=1,
    max_size=5,
)


def put_objects(stores: Stores, objects) -> None:
    put(stores, {"0.csv": b"1,2\n"})  # the first record has the columns that the model takes
    for index, (text, packing) in enumerate(objects, 1):
        name, data = f"{index}.csv", text
        if packing == "tar":
            half = text.find(b"1,2\n", len(text) // 2)
            name, data = f"{index}.tar", tar({"a.csv": text[: max(half, 0)], "b.csv": text[max(half, 0) :]})
        elif packing != "plain":
            name, data = f"{name}.gz", gzip.compress(text, mtime=0)
            data = data[:-3] if packing == "broken" else data
        put(stores, {name: data})


def planned(stores: Stores, limit: int | None, **subset) -> list[PlannedObject]:
    used = StreamSettings(subset=SubsetSettings(limit=limit, **subset))
    return limit_objects(plan_objects(select_infos(IN, stores, used), None), stores, used)


def stream_settings(limit: int | None, **more) -> StreamSettings:
    return StreamSettings(
        subset=SubsetSettings(limit=limit),
        output=OutputSettings(join="input", part_bytes_max=100),
        **more,
    )


def stream(stores: Stores, predictor, used: StreamSettings, *, destination: str = OUT, **more) -> Run:
    return Run(IN, destination, stores=stores, predictor=predictor, settings=used, model_identity="m", **more)


def written(stores: Stores, destination: str = OUT) -> tuple[list[bytes], list[tuple]]:
    """Return the lines of the predictions, and the places of the failed records, in order."""
    found = outputs(stores, destination)
    lines = [line for name, data in found.items() if "failed" not in name for line in data.splitlines()]
    failed = [line for name, data in found.items() if "failed" in name for line in failed_lines(data)]
    return lines, [
        (line["object"], line["member"], line["record"], line["line"], line["byte"], line["reason"])
        for line in failed
        if line["kind"] != "object"
    ]


@given(OBJECTS, st.integers(1, 40))
def test_stream_scores_the_first_records(shared, objects, limit):
    stores = Stores()
    put_objects(stores, objects)
    whole = stream(stores, shared, stream_settings(None), destination="memory://whole/").execute()
    report = stream(stores, shared, stream_settings(limit)).execute()
    assert report.records_in == min(limit, whole.records_in)
    assert report.limit == limit
    lines, failed = written(stores)
    all_lines, all_failed = written(stores, "memory://whole/")
    assert lines == all_lines[: len(lines)]
    assert failed == all_failed[: report.rows_failed]
    if limit > whole.records_in:
        assert report.objects == whole.objects
        assert report.objects_broken == whole.objects_broken


@settings(max_examples=levels.examples(0.5))
@given(OBJECTS, st.integers(1, 40), st.integers(10, 60), st.randoms())
def test_tasks_of_a_limited_transform_score_the_same_records(shared, objects, limit, task_bytes, random):
    stores = Stores()
    put_objects(stores, objects)
    streamed = stream(stores, shared, stream_settings(limit), destination="memory://stream/").execute()
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        used = make_settings(
            output={"join": "input"}, subset=SubsetSettings(limit=limit), tasks={"task_bytes": task_bytes}
        )
        run = make_transform(stores, predictor=shared, settings=used)
        shuffle(run, random)
        report = run.execute()
    assert [sorted(part) for part in written(stores)] == [
        sorted(part) for part in written(stores, "memory://stream/")
    ]
    assert (report.records_in, report.objects) == (streamed.records_in, streamed.objects)


def test_objects_after_the_limit_are_not_planned(shared, stores):
    put(stores, {f"{n}.csv": rows(5) for n in range(4)})
    report = make_transform(
        stores, predictor=shared, settings=make_settings(subset=SubsetSettings(limit=7))
    ).execute()
    assert set(outputs(stores)) == {"0.csv.out", "1.csv.out"}
    assert outputs(stores)["1.csv.out"] == b"0.0\n2.0\n"
    assert (report.objects, report.objects_done, report.records_in) == (2, 2, 7)
    planned = Ledger(stores.for_uri(OUT), OUT).planned_objects()
    assert [one.bound for one in planned] == [None, ReadBound(2)]


@for_each(
    ("limit", "bounds"),
    [
        (1, [ReadBound(1)]),
        (5, [ReadBound(5)]),
        (6, [None, ReadBound(1, member_byte=0)]),
        (7, [None, ReadBound(2, member_byte=0)]),
        (8, [None, ReadBound(1, member_byte=1024)]),
        (9, [None, ReadBound(2, member_byte=1024)]),
        (11, [None, None, None, ReadBound(2)]),
        (12, [None, None, None, None]),
        (None, [None, None, None, None]),
    ],
)
def test_bound_is_the_place_after_the_last_record(stores, limit, bounds):
    put(stores, {"a.csv": rows(5), "b.tar": tar({"1.csv": rows(2), "2.csv": rows(2)}), "c.csv": b""})
    put(stores, {"d.rec": recordio([b"a", b"b"])})
    assert [o.bound for o in planned(stores, limit)] == bounds


def test_limit_with_a_sample_takes_the_first_chosen_records(stores):
    put(stores, {"a.csv": rows(1000)})
    (whole,) = planned(stores, 1000, sample=0.1)
    assert whole.bound is None
    places = [planned(stores, limit, sample=0.1)[0].bound.record for limit in (1, 2, 3, 20)]
    assert places == sorted(set(places))
    assert 100 < places[-1] < 350
    used = StreamSettings(subset=SubsetSettings(limit=20, sample=0.1))
    report = stream(stores, ScriptedPredictor(), used).execute()
    assert (report.records_in, report.rows_out) == (20, 20)


def test_limited_object_is_read_by_one_task(stores, monkeypatch, shared):
    allow_small_tasks(monkeypatch)
    put(stores, {"a.csv": rows(40), "b.csv": rows(40)})
    run = make_transform(
        stores,
        predictor=shared,
        settings=make_settings(subset=SubsetSettings(limit=70), tasks={"task_bytes": 30}),
    )
    assert run.execute().records_in == 70
    assert [shard.is_whole for task in run.plan.tasks for shard in task.shards if shard.index == 1] == [True]
    assert outputs(stores)["b.csv.out"].count(b"\n") == 30


def test_only_the_beginning_of_a_large_object_is_read(shared):
    stores = Stores()
    put(stores, {"a.csv": rows(2_000_000)})
    report = stream(stores, shared, stream_settings(10)).execute()
    assert report.records_in == 10
    assert report.bytes_read < 4 << 20


def test_failed_records_of_a_limited_run_are_retried(shared, stores):
    put(stores, {"a.csv": rows(2) + b"-3,1\n-4,1\n"})
    used = make_settings(subset=SubsetSettings(limit=3))
    report = make_transform(stores, predictor=shared, settings=used).execute()
    assert (report.records_in, report.rows_failed) == (3, 1)


def test_finished_and_interrupted_runs_ignore_objects_after_the_limit(shared, stores):
    put(stores, {"a.csv": rows(5), "b.csv": rows(5), "c.csv": rows(5)})
    used = make_settings(subset=SubsetSettings(limit=7))

    def resume() -> int:
        return (
            make_transform(stores, predictor=shared, settings=used, if_exists="resume").execute().records_in
        )

    assert resume() == 7
    Ledger(stores.for_uri(OUT), OUT).reopen()
    stores.for_uri(IN).delete(IN + "c.csv")
    put(stores, {"d.csv": rows(5)})
    assert resume() == 7
    Ledger(stores.for_uri(OUT), OUT).reopen()
    put(stores, {"aa.csv": rows(5)})
    with pytest.raises(ResumeRefusedError, match=r"aa\.csv is new"):
        resume()


def test_appended_runs_refuse_a_limit(stores):
    put(stores, {"a.csv": rows(5)})
    run = stream(stores, ScriptedPredictor(), stream_settings(3))
    with pytest.raises(ConfigError, match="limit selects the first records of a complete source"):
        run.append(run.select())
    assert outputs(stores) == {}


def test_sequences_of_a_limited_run_are_those_of_a_shorter_source():
    text = b"u,1\nv,2\nu,3\nv,4\n"
    found: list[tuple] = []
    for data, limit in ((text, 3), (text[: -len(b"v,4\n")], None)):
        stores, predictor = Stores(), SummingPredictor(columns=1)
        put(stores, {"a.csv": data})
        used = stream_settings(limit, mapping=MappingOptions(sequence=0))
        assert stream(stores, predictor, used).execute().records_in == 3
        found.append((outputs(stores), predictor.sums, predictor.ended))
    assert found[0] == found[1]


def test_python_streams_honour_limit_and_sample(stores):
    put(stores, {"a.csv": rows(300), "b.csv": rows(300, 300)})

    def records(**subset) -> list[int]:
        used = StreamSettings(subset=SubsetSettings(**subset))
        found = headrace.stream(IN, model=ScriptedPredictor(), settings=used, stores=stores)
        return [int(outcome.record.split(b",")[0]) for outcome in found]

    assert records(limit=302) == list(range(302))
    sample = records(sample=0.1)
    assert 20 < len(sample) < 120
    assert records(sample=0.1, limit=5) == sample[:5]
    assert records(sample=0.1, sample_seed=1) != sample


def test_outcomes_of_a_sample_are_in_the_order_of_the_source(stores):
    put(stores, {"a.csv": b"".join(b"%d,1\n" % n if n % 3 else b"x,1\n" for n in range(300))})
    used = StreamSettings(subset=SubsetSettings(sample=0.5))
    found = list(headrace.stream(IN, model=ScriptedPredictor(), settings=used, stores=stores))
    numbers = [outcome.position.record for outcome in found]
    assert numbers == sorted(set(numbers))
    assert [outcome.ok for outcome in found] == [number % 3 > 0 for number in numbers]
    assert 30 < sum(not outcome.ok for outcome in found) < 70


def test_missing_object_is_broken_and_has_no_record(shared, stores):
    put(stores, {"a.csv": rows(1), "b.csv": rows(2)})
    used = stream_settings(2)
    infos = plan_objects(select_infos(IN, stores, used), None)
    stores.for_uri(IN).delete(IN + "a.csv")
    assert [o.bound for o in limit_objects(infos, stores, used)] == [None, ReadBound(2)]
