"""Names of outputs, refused sources, and the split into tasks."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError, EmptySourceError, NotFoundError
from headrace.runs import plan as module
from headrace.runs.objects import check_separate, plan_objects, select_infos
from headrace.runs.plan import Shard, Task
from headrace.runs.plan_pages import make_plan
from headrace.runs.records import PlannedObject
from headrace.runs.settings import StreamSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from runs.support import make_settings, plan_of, put

OUT = "memory://out/run/"


@pytest.fixture
def stores(stores) -> Stores:
    names = ("a.csv", "b.csv", "day/x.csv", "day/y.csv", "day/z/w.csv", "day-2.csv")
    put(stores, dict.fromkeys(names, b"1,2\n"))
    return stores


def names(source, stores, destination=OUT, **settings) -> dict[str, str]:
    plan = plan_of(stores, make_settings(**settings), source, destination)
    return {o.info.uri.removeprefix("memory://in/"): o.output for o in plan.objects}


@for_each(
    ("source", "expected"),
    [
        ("memory://in/day/", {"day/x.csv": "x.csv", "day/y.csv": "y.csv", "day/z/w.csv": "z/w.csv"}),
        ("memory://in/day", {"day/x.csv": "x.csv", "day/y.csv": "y.csv", "day/z/w.csv": "z/w.csv"}),
        ("memory://in/day/x.csv", {"day/x.csv": "x.csv"}),
        ("memory://in/day/*.csv", {"day/x.csv": "x.csv", "day/y.csv": "y.csv", "day/z/w.csv": "z/w.csv"}),
        ("memory://in/d*/x.csv", {"day/x.csv": "day/x.csv"}),
        ("memory://in/?.csv", {"a.csv": "a.csv", "b.csv": "b.csv"}),
        (["memory://in/a.csv", "memory://in/b.csv"], {"a.csv": "a.csv", "b.csv": "b.csv"}),
        (["memory://in/a.csv", "memory://in/day/x.csv"], {"a.csv": "a.csv", "day/x.csv": "day/x.csv"}),
        (["memory://in/day/x.csv", "memory://in/day/z/"], {"day/x.csv": "x.csv", "day/z/w.csv": "z/w.csv"}),
        (
            ["memory://in/day/x.csv", "memory://in/day-2.csv"],
            {"day/x.csv": "day/x.csv", "day-2.csv": "day-2.csv"},
        ),
        (
            ["memory://in/day/z/w.csv", "memory://in/day/x.csv"],
            {"day/z/w.csv": "z/w.csv", "day/x.csv": "x.csv"},
        ),
        (
            ["memory://in/day/", "memory://in/day/x.csv"],
            {"day/x.csv": "x.csv", "day/y.csv": "y.csv", "day/z/w.csv": "z/w.csv"},
        ),
    ],
)
def test_outputs_are_named_relative_to_the_source(stores, source, expected):
    found = names(source, stores)
    assert found == {k: f"{v}.out" for k, v in expected.items()}


def test_failed_records_are_named_after_the_output(stores):
    plan = plan_of(stores, make_settings(), "memory://in/a.csv", OUT)
    assert [(o.output, o.failed) for o in plan.objects] == [("a.csv.out", "a.csv.out.failed")]


def test_objects_of_a_run_that_writes_parts_have_no_outputs(stores):
    plan = plan_of(stores, StreamSettings(), "memory://in/day/", OUT)
    assert [(o.output, o.failed) for o in plan.objects] == [("", "")] * 3


@for_each(
    ("source", "expected"),
    [
        ("memory://in/day", ["day-2.csv", "day/x.csv", "day/y.csv", "day/z/w.csv"]),
        ("memory://in/day/", ["x.csv", "y.csv", "z/w.csv"]),
        ("memory://in/d", ["day-2.csv", "day/x.csv", "day/y.csv", "day/z/w.csv"]),
        (["memory://in/day/z", "memory://in/a"], ["day/z/w.csv", "a.csv"]),
        (["memory://in/day/z", "memory://in/day/"], ["z/w.csv", "x.csv", "y.csv"]),
    ],
)
def test_prefix_matches_any_object_name(stores, source, expected):
    assert list(names(source, stores, data_type="prefix").values()) == [f"{n}.out" for n in expected]


def test_prefix_without_objects_is_an_error(stores):
    with pytest.raises(EmptySourceError, match="no object has this prefix"):
        names("memory://in/q", stores, data_type="prefix")
    with pytest.raises(NotFoundError):
        names("memory://in/q", stores)


@for_each("uri", ["memory://lists/m", "manifest:memory://lists/m"])
@for_each(
    "text",
    [
        "memory://in/day/x.csv\n# not this\nmemory://in/a.csv\n",
        json.dumps([{"prefix": "memory://in/"}, "day/x.csv", "a.csv"]),
    ],
)
def test_manifest_lists_objects(stores, uri, text):
    stores.for_uri(uri.removeprefix("manifest:")).put("memory://lists/m", text.encode())
    assert names(uri, stores, data_type="manifest") == {"day/x.csv": "day/x.csv.out", "a.csv": "a.csv.out"}
    assert names("manifest:memory://lists/m", stores) == names(uri, stores, data_type="manifest")


def test_outputs_of_several_buckets_contain_the_bucket(stores):
    put(stores, {"a.csv": b"1,2\n"}, "memory://other/")
    found = names(["memory://in/a.csv", "memory://other/a.csv"], stores)
    assert list(found.values()) == ["in/a.csv.out", "other/a.csv.out"]


def test_outputs_of_several_stores_are_relative(stores, tmp_path):
    (tmp_path / "b.csv").write_bytes(b"1,2\n")
    found = list(names(["memory://in/a.csv", f"{tmp_path}/b.csv"], stores).values())
    assert found[0] == "in/a.csv.out"
    assert found[1].endswith("/b.csv.out")
    assert not any("//" in name or name.startswith("/") for name in found)


def test_paths_are_named_below_their_common_folder(stores, tmp_path, monkeypatch):
    """No output is ever written outside of the destination."""
    for name in ("here/a.csv", "there/b.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"1,2\n")
    monkeypatch.chdir(tmp_path / "here")
    assert list(names(["a.csv", "../there/b.csv"], stores).values()) == ["here/a.csv.out", "there/b.csv.out"]
    assert list(names("a.csv", stores).values()) == ["a.csv.out"]
    assert list(names("./a.csv", stores).values()) == ["a.csv.out"]
    assert list(names("../there/", stores).values()) == ["b.csv.out"]
    assert list(names("../*/b.csv", stores).values()) == ["there/b.csv.out"]
    assert list(names(f"file://{tmp_path}/there/b.csv", stores).values()) == ["b.csv.out"]


class Listed:
    """A store of web addresses that has every object."""

    def head(self, uri):
        return ObjectInfo(uri, None)


class WebStores(Stores):
    def for_uri(self, uri):
        return Listed() if uri.startswith("http") else super().for_uri(uri)


def test_web_address_is_named_without_query():
    stores = WebStores()
    assert list(names("http://host/in/a.csv?key=1&x=/b", stores).values()) == ["a.csv.out"]
    two = ["http://host/in/a.csv?k=1", "http://host/in/sub/b.csv?k=/2/x"]
    assert list(names(two, stores).values()) == ["a.csv.out", "sub/b.csv.out"]
    with pytest.raises(ConfigError, match=r"would both be written to a\.csv\.out"):
        names(["http://host/a.csv?n=1", "http://host/a.csv?n=2"], stores)


@for_each(("accept", "suffix"), [("parquet", ".out.parquet"), ("arrow", ".out.arrow"), ("json", ".out")])
def test_table_outputs_have_a_suffix(stores, accept, suffix):
    assert names("memory://in/a.csv", stores, output={"format": accept}) == {"a.csv": "a.csv" + suffix}


@for_each("destination", ["memory://in/", "memory://in/day/", "memory://"])
def test_source_in_the_destination_is_refused(stores, destination):
    with pytest.raises(ConfigError, match="must not read what it writes"):
        names("memory://in/", stores, destination)


@for_each(
    "source",
    ["memory://in/", "memory://in/*", "memory://*/*", ["memory://in/a.csv", "memory://in/"]],
)
def test_destination_in_the_source_is_refused(stores, source):
    with pytest.raises(ConfigError, match="must not read what it writes"):
        names(source, stores, "memory://in/out/")


def test_destination_below_a_prefix_is_refused(stores):
    with pytest.raises(ConfigError, match="must not read what it writes"):
        names("memory://in/d", stores, "memory://in/done/", data_type="prefix")
    assert names("memory://in/d", stores, "memory://in/out/", data_type="prefix")


def test_destination_outside_of_the_glob_is_accepted(stores):
    assert names("memory://in/*.csv", stores, "memory://in/out/")
    assert names("memory://in/a.csv", stores, "memory://in/out/")


def test_overlap_is_found_for_any_spelling_of_paths(stores, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(b"1,2\n")
    monkeypatch.chdir(tmp_path)
    for source in ("in/", "./in/", f"{tmp_path}/in/", f"file://{tmp_path}/in/"):
        for destination in ("in/", "./in/", f"{tmp_path}/in/", f"file://{tmp_path}/in/", "in/out/", "./"):
            with pytest.raises(ConfigError, match="must not read what it writes"):
                names(source, stores, destination)
        assert names(source, stores, "out/")


def test_run_that_writes_parts_may_write_below_its_source(stores):
    """It lists the source once, before it writes, and only an object of the output is refused."""
    objects = plan_objects(select_infos("memory://in/", stores, StreamSettings()), None)
    check_separate("memory://in/", "memory://in/out/", objects, "auto")
    with pytest.raises(ConfigError, match=r"day/x\.csv is in the output memory://in/day/"):
        check_separate("memory://in/", "memory://in/day/", objects, "auto")


def test_object_of_unknown_format_is_refused(stores):
    put(stores, {"day/_SUCCESS": b""})
    why = "_SUCCESS: the name does not determine the format.*--format.*exclude"
    for settings in (make_settings(), StreamSettings()):
        with pytest.raises(ConfigError, match=why):
            select_infos("memory://in/day/", stores, settings)
    assert len(names("memory://in/day/", stores, read={"format": "line"})) == 4


def test_parquet_objects_are_readable(stores):
    put(stores, {"day/t.parquet": b""})
    for settings in (make_settings(), StreamSettings()):
        assert len(select_infos("memory://in/day/", stores, settings)) == 4


# Tasks


SIZES = st.lists(st.one_of(st.none(), st.integers(0, 400)), min_size=1, max_size=30)
KINDS = st.sampled_from(["csv", "jsonl", "csv.gz", "json", "tar"])


@st.composite
def cases(draw):
    sizes = draw(SIZES)
    objects = [
        PlannedObject(ObjectInfo(f"memory://in/{n:03d}.{draw(KINDS)}", size, f"e{n}"), f"{n}.out")
        for n, size in enumerate(sizes)
    ]
    tasks = {"task_bytes": draw(st.integers(1, 200)), "task_objects_max": draw(st.integers(1, 8))}
    accept = draw(st.sampled_from(["auto", "csv", "parquet", "arrow"]))
    return objects, make_settings(tasks=tasks, output={"format": accept})


@given(cases(), st.integers(1, 64), st.integers(1, 20))
def test_shards_partition_the_objects(case, least, aim):
    objects, settings = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TASK_BYTES_MIN", least)
        patch.setattr(module, "TASKS_AIM", aim)
        tasks = make_plan([objects], settings).tasks
        assert make_plan([list(objects)], settings).tasks == tasks
    assert [t.number for t in tasks] == list(range(len(tasks)))
    assert all(t.shards for t in tasks)
    shards = [s for t in tasks for s in t.shards]
    assert [(s.index, s.number) for s in shards] == [
        (index, number)
        for index in range(len(objects))
        for number in range(next(s.count for s in shards if s.index == index))
    ]
    for index, planned in enumerate(objects):
        object_shards = [s for s in shards if s.index == index]
        assert {s.count for s in object_shards} == {len(object_shards)}
        assert object_shards[0].start == 0
        assert object_shards[-1].stop is None
        assert all(a.stop == b.start for a, b in pairwise(object_shards))
        assert all(s.stop is None or s.start < s.stop for s in object_shards)
        text = planned.info.uri.endswith((".csv", ".jsonl"))
        if planned.info.size_bytes is None or not text or settings.output.format in ("parquet", "arrow"):
            assert object_shards[0].is_whole


@given(cases())
def test_task_sizes_are_within_limits(case):
    objects, settings = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TASK_BYTES_MIN", 1)
        patch.setattr(module, "TASKS_AIM", 1)
        tasks = make_plan([objects], settings).tasks
        task_bytes = min(settings.tasks.task_bytes, sum(o.info.size_bytes or 0 for o in objects) or 1)
    for task in tasks:
        sizes = [objects[s.index].info.size_bytes for s in task.shards]
        assert len(task.shards) <= settings.tasks.task_objects_max
        if len(task.shards) > 1:
            assert None not in sizes
            # Without its last object, the task was not full.
            assert sum(sizes[:-1]) < task_bytes
        if not task.shards[0].is_whole:
            assert len(task.shards) == 1


@given(cases(), st.integers(0, 30))
def test_second_plan_file_continues_task_numbers_and_object_indices(case, cut):
    objects, settings = case
    first, second = objects[:cut], objects[cut:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TASK_BYTES_MIN", 1)
        patch.setattr(module, "TASKS_AIM", 1)
        plan = make_plan([first, second], settings)
        before, alone = (make_plan([one], settings).tasks for one in (first, second))
    assert plan.objects == tuple(objects)
    assert plan.tasks[: len(before)] == before
    assert plan.tasks[len(before) :] == tuple(
        Task(len(before) + t.number, tuple(replace(s, index=len(first) + s.index) for s in t.shards))
        for t in alone
    )


def test_objects_of_different_regions_are_in_different_tasks():
    regions = {"a": "eu", "b": "eu", "c": "us", "d": None, "e": "us"}
    infos = [ObjectInfo(f"memory://in/{name}", 1) for name in regions]
    objects = plan_objects(infos, None, region_of=lambda uri: regions[uri[-1]])
    assert [o.region for o in objects] == list(regions.values())
    assert make_plan([objects], make_settings()).tasks == (
        Task(0, (Shard(0), Shard(1)), "eu"),
        Task(1, (Shard(2),), "us"),
        Task(2, (Shard(3),)),
        Task(3, (Shard(4),), "us"),
    )


def test_small_source_is_one_task(stores):
    assert len(plan_of(stores, make_settings(), "memory://in/", OUT).tasks) == 1


def test_only_large_texts_are_split():
    infos = [ObjectInfo("memory://in/a.csv", 1 << 30), ObjectInfo("memory://in/b.csv.gz", 1 << 30)]
    objects = [PlannedObject(info, "o") for info in infos]
    tasks = make_plan([objects], make_settings()).tasks
    assert len(tasks) == 17
    assert [t.shards[0].count for t in tasks] == [16] * 16 + [1]
    assert len(make_plan([objects], make_settings(read={"compression": "gzip"})).tasks) == 2
    whole = [replace(o, info=replace(o.info, uri="memory://in/a.json")) for o in objects]
    assert len(make_plan([whole], make_settings()).tasks) == 2


def test_plan_sums_the_sizes(stores):
    assert plan_of(stores, make_settings(), "memory://in/", OUT).nbytes == 6 * 4
