"""What outputs are called, what is refused, and how the work is cut."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, EmptySourceError, NotFoundError
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.transforms import plan as module
from headrace.transforms.plan import PlannedObject, cut_tasks, make_plan
from transforms.support import put, settings_of

OUT = "memory://out/run/"


@pytest.fixture
def stores(stores) -> Stores:
    names = ("a.csv", "b.csv", "day/x.csv", "day/y.csv", "day/z/w.csv", "day-2.csv")
    put(stores, dict.fromkeys(names, b"1,2\n"))
    return stores


def names(source, stores, destination=OUT, **settings) -> dict[str, str]:
    plan = make_plan(source, destination, stores, settings_of(**settings))
    return {o.info.uri.removeprefix("memory://in/"): o.output for o in plan.objects}


@pytest.mark.parametrize(
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
        (["memory://in/day/x.csv", "memory://in/day-2.csv"], {"day/x.csv": "day/x.csv", "day-2.csv": "day-2.csv"}),
        (["memory://in/day/z/w.csv", "memory://in/day/x.csv"], {"day/z/w.csv": "z/w.csv", "day/x.csv": "x.csv"}),
        (["memory://in/day/", "memory://in/day/x.csv"], {"day/x.csv": "x.csv", "day/y.csv": "y.csv", "day/z/w.csv": "z/w.csv"}),
    ],
)  # fmt: skip
def test_outputs_are_named_by_what_stands_below_the_source(stores, source, expected):
    found = names(source, stores)
    assert found == {k: f"{v}.out" for k, v in expected.items()}


def test_a_planned_object_knows_where_its_failures_go(stores):
    plan = make_plan("memory://in/a.csv", OUT, stores, settings_of())
    assert [(o.output, o.failed) for o in plan.objects] == [("a.csv.out", "a.csv.out.failed")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("memory://in/day", ["day-2.csv", "day/x.csv", "day/y.csv", "day/z/w.csv"]),
        ("memory://in/day/", ["x.csv", "y.csv", "z/w.csv"]),
        ("memory://in/d", ["day-2.csv", "day/x.csv", "day/y.csv", "day/z/w.csv"]),
        (["memory://in/day/z", "memory://in/a"], ["day/z/w.csv", "a.csv"]),
        (["memory://in/day/z", "memory://in/day/"], ["z/w.csv", "x.csv", "y.csv"]),
    ],
)
def test_a_prefix_is_a_string(stores, source, expected):
    assert list(names(source, stores, data_type="prefix").values()) == [f"{n}.out" for n in expected]


def test_a_prefix_of_nothing_is_an_error(stores):
    with pytest.raises(EmptySourceError, match="no object's name begins so"):
        names("memory://in/q", stores, data_type="prefix")
    with pytest.raises(NotFoundError):
        names("memory://in/q", stores)


@pytest.mark.parametrize("uri", ["memory://lists/m", "manifest:memory://lists/m"])
@pytest.mark.parametrize(
    "text",
    [
        "memory://in/day/x.csv\n# not this\nmemory://in/a.csv\n",
        json.dumps([{"prefix": "memory://in/"}, "day/x.csv", "a.csv"]),
    ],
)
def test_a_manifest_names_objects(stores, uri, text):
    stores.for_uri(uri.removeprefix("manifest:")).put("memory://lists/m", text.encode())
    assert names(uri, stores, data_type="manifest") == {"day/x.csv": "day/x.csv.out", "a.csv": "a.csv.out"}
    assert names("manifest:memory://lists/m", stores) == names(uri, stores, data_type="manifest")


def test_objects_of_several_buckets_keep_the_buckets_names(stores):
    put(stores, {"a.csv": b"1,2\n"}, "memory://other/")
    found = names(["memory://in/a.csv", "memory://other/a.csv"], stores)
    assert list(found.values()) == ["in/a.csv.out", "other/a.csv.out"]


def test_objects_of_several_stores_have_names_too(stores, tmp_path):
    (tmp_path / "b.csv").write_bytes(b"1,2\n")
    found = list(names(["memory://in/a.csv", f"{tmp_path}/b.csv"], stores).values())
    assert found[0] == "in/a.csv.out"
    assert found[1].endswith("/b.csv.out")
    assert not any("//" in name or name.startswith("/") for name in found)


def test_plain_paths_are_named_from_where_they_meet(stores, tmp_path, monkeypatch):
    """Nothing is ever written outside of the destination."""
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
    """A store of web addresses, which has what is asked for."""

    def head(self, uri):
        return ObjectInfo(uri, None)


class WebStores(Stores):
    def for_uri(self, uri):
        return Listed() if uri.startswith("http") else super().for_uri(uri)


def test_a_web_address_is_named_without_its_query():
    found = make_plan("http://host/in/a.csv?key=1&x=/b", OUT, WebStores(), settings_of())
    assert [o.output for o in found.objects] == ["a.csv.out"]
    found = make_plan(
        ["http://host/in/a.csv?k=1", "http://host/in/sub/b.csv?k=/2/x"], OUT, WebStores(), settings_of()
    )
    assert [o.output for o in found.objects] == ["a.csv.out", "sub/b.csv.out"]
    with pytest.raises(ConfigError, match=r"would both be written to a\.csv\.out"):
        make_plan(["http://host/a.csv?n=1", "http://host/a.csv?n=2"], OUT, WebStores(), settings_of())


@pytest.mark.parametrize(
    ("accept", "suffix"), [("parquet", ".out.parquet"), ("arrow", ".out.arrow"), ("json", ".out")]
)
def test_tables_say_in_their_names_what_they_are(stores, accept, suffix):
    assert names("memory://in/a.csv", stores, output={"accept": accept}) == {"a.csv": "a.csv" + suffix}


@pytest.mark.parametrize("destination", ["memory://in/", "memory://in/day/", "memory://"])
def test_what_lies_in_the_destination_is_not_read(stores, destination):
    with pytest.raises(ConfigError, match="must not read what it writes"):
        names("memory://in/", stores, destination)


@pytest.mark.parametrize(
    "source",
    ["memory://in/", "memory://in/*", "memory://*/*", ["memory://in/a.csv", "memory://in/"]],
)
def test_a_destination_that_the_source_covers_is_refused_before_it_is_written(stores, source):
    with pytest.raises(ConfigError, match="must not read what it writes"):
        names(source, stores, "memory://in/out/")


def test_so_is_one_below_a_string_prefix(stores):
    with pytest.raises(ConfigError, match="must not read what it writes"):
        names("memory://in/d", stores, "memory://in/done/", data_type="prefix")
    assert names("memory://in/d", stores, "memory://in/out/", data_type="prefix")


def test_a_destination_beside_what_a_glob_matches_is_none_of_its(stores):
    assert names("memory://in/*.csv", stores, "memory://in/out/")
    assert names("memory://in/a.csv", stores, "memory://in/out/")


def test_a_loop_is_seen_however_paths_are_written(stores, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(b"1,2\n")
    monkeypatch.chdir(tmp_path)
    for source in ("in/", "./in/", f"{tmp_path}/in/", f"file://{tmp_path}/in/"):
        for destination in ("in/", "./in/", f"{tmp_path}/in/", f"file://{tmp_path}/in/", "in/out/", "./"):
            with pytest.raises(ConfigError, match="must not read what it writes"):
                names(source, stores, destination)
        assert names(source, stores, "out/")


def test_an_object_that_cannot_be_read_is_refused(stores):
    put(stores, {"day/_SUCCESS": b""})
    with pytest.raises(ConfigError, match="_SUCCESS: its name does not tell"):
        names("memory://in/day/", stores)
    assert len(names("memory://in/day/", stores, read={"format": "line"})) == 4


# Cutting


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
    return objects, settings_of(tasks=tasks, output={"accept": accept})


@given(cases(), st.integers(1, 64), st.integers(1, 20))
def test_every_byte_is_in_exactly_one_shard_in_order(case, least, aim):
    objects, settings = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TASK_BYTES_MIN", least)
        patch.setattr(module, "TASKS_AIM", aim)
        tasks = cut_tasks(objects, settings)
        assert cut_tasks(list(objects), settings) == tasks
    assert [t.number for t in tasks] == list(range(len(tasks)))
    assert all(t.shards for t in tasks)
    shards = [s for t in tasks for s in t.shards]
    assert [(s.index, s.number) for s in shards] == [
        (index, number)
        for index in range(len(objects))
        for number in range(next(s.of for s in shards if s.index == index))
    ]
    for index, planned in enumerate(objects):
        mine = [s for s in shards if s.index == index]
        assert {s.of for s in mine} == {len(mine)}
        assert mine[0].start == 0
        assert mine[-1].stop is None
        assert all(a.stop == b.start for a, b in pairwise(mine))
        assert all(s.stop is None or s.start < s.stop for s in mine)
        text = planned.info.uri.endswith((".csv", ".jsonl"))
        if planned.info.size_bytes is None or not text or settings.output.accept in ("parquet", "arrow"):
            assert mine[0].whole


@given(cases())
def test_tasks_are_neither_too_large_nor_too_small(case):
    objects, settings = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TASK_BYTES_MIN", 1)
        patch.setattr(module, "TASKS_AIM", 1)
        tasks = cut_tasks(objects, settings)
        task_bytes = min(settings.tasks.task_bytes, sum(o.info.size_bytes or 0 for o in objects) or 1)
    for task in tasks:
        sizes = [objects[s.index].info.size_bytes for s in task.shards]
        assert len(task.shards) <= settings.tasks.task_objects_max
        if len(task.shards) > 1:
            assert None not in sizes
            # The last one made it full; without it the task had room.
            assert sum(sizes[:-1]) < task_bytes
        if not task.shards[0].whole:
            assert len(task.shards) == 1


def test_a_small_source_is_one_task(stores):
    assert len(make_plan("memory://in/", OUT, stores, settings_of()).tasks) == 1


def test_a_large_text_is_cut_and_others_are_not():
    infos = [ObjectInfo("memory://in/a.csv", 1 << 30), ObjectInfo("memory://in/b.csv.gz", 1 << 30)]
    objects = [PlannedObject(info, "o") for info in infos]
    tasks = cut_tasks(objects, settings_of())
    assert len(tasks) == 17
    assert [t.shards[0].of for t in tasks] == [16] * 16 + [1]
    assert len(cut_tasks(objects, settings_of(read={"compression": "gzip"}))) == 2
    whole = [replace(o, info=replace(o.info, uri="memory://in/a.json")) for o in objects]
    assert len(cut_tasks(whole, settings_of())) == 2


def test_how_much_there_is(stores):
    assert make_plan("memory://in/", OUT, stores, settings_of()).nbytes == 6 * 4
