"""Whole transforms: outputs, resumption after crashes, and refused runs."""

import contextlib
import gzip
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.errors import (
    EmptySourceError,
    HeadraceError,
    LedgerError,
    ModelInputError,
    OutputExistsError,
    ResumeRefusedError,
    TooManyFailuresError,
    UnavailableError,
)
from headrace.runs.ledger import Ledger
from headrace.storage.resolve import MemoryStore, Stores
from headrace.testing import FlakyStore
from runs.support import (
    IN,
    OUT,
    Doubler,
    FailingPredictor,
    FailOnceStore,
    InjectedError,
    OverlaidStores,
    allow_small_tasks,
    engine,
    failed_lines,
    ledger_names,
    make_settings,
    make_transform,
    outputs,
    put,
    rows,
    shuffle,
    tar,
    transform,
)

TINY = {"checkpoint_s": 0.0}
"""Settings with a checkpoint after every batch."""


def doubled(count: int, start: int = 0) -> bytes:
    return b"".join(b"%.1f\n" % (2.0 * i) for i in range(start, start + count))


# Outputs


def test_objects_share_batches_but_not_outputs(stores):
    put(stores, {f"{n:03d}.csv": rows(1, n) for n in range(10)})
    model = Doubler()
    with engine(model) as predictor:
        report = transform(stores, predictor=predictor)
    assert outputs(stores) == {f"{n:03d}.csv.out": doubled(1, n) for n in range(10)}
    assert model.batch_rows == [4, 4, 2]
    assert (report.objects, report.objects_done, report.records_in, report.rows_out) == (10, 10, 10, 10)
    assert (report.status, report.exit_code, report.model_calls) == ("complete", 0, 3)


GOOD, BAD_CELL, BAD_WIDTH, REFUSED = "good", "bad cell", "bad width", "refused"


def line_of(number: int, kind: str) -> bytes:
    return {
        GOOD: b"%d,1" % number,
        BAD_CELL: b"no%d,1" % number,
        BAD_WIDTH: b"%d" % number,
        REFUSED: b"-%d,1" % (number + 1),
    }[kind]


OBJECTS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([GOOD] * 4 + [BAD_CELL, BAD_WIDTH, REFUSED]), max_size=11),
        st.sampled_from(["plain", "gz", "broken gz"]),
    ),
    min_size=1,
    max_size=7,
)


@given(OBJECTS, st.integers(1, 5), st.booleans())
def test_every_record_is_in_its_objects_output_or_failures(shared, objects, task_objects_max, header):
    stores, number = Stores(), 0
    expected, places, broken = {}, {}, 0
    head = b"p,q\n" if header else b""
    for index, (kinds, packing) in enumerate(objects):
        lines = [line_of(number + i, kind) for i, kind in enumerate(kinds)]
        text = head + b"".join(line + b"\n" for line in lines)
        name = f"{index}.csv" + (".gz" if packing != "plain" else "")
        packed = text if packing == "plain" else gzip.compress(text, mtime=0)
        if packing == "broken gz":
            packed = packed[:-3]
            broken += 1
        put(stores, {name: packed})
        out, failed, at = b"", [], len(head)
        begun = False
        for record, (kind, line) in enumerate(zip(kinds, lines, strict=True)):
            if kind == GOOD:
                out += (b"y\n" if header and not begun else b"") + b"%.1f\n" % (2.0 * (number + record))
                begun = True
            else:
                place = (out.count(b"\n") - (begun and header), len(out))
                failed.append((record, record + 1 + header, at, line.decode(), *place))
            at += len(line) + 1
        number += len(kinds)
        expected[name] = b"y\n" if header and not kinds and packing != "broken gz" else out
        places[name] = (failed, packing == "broken gz", len(kinds))
    run_settings = make_settings(
        read={"header": "names" if header else "none"}, tasks={"task_objects_max": task_objects_max}
    )
    good_widths = any(k != BAD_WIDTH for kinds, _ in objects for k in kinds)
    if not good_widths and number:
        return  # such a source is refused; another test covers it
    report = transform(stores, predictor=shared, settings=run_settings)
    found = outputs(stores)
    for name, out in expected.items():
        failed, is_broken, records = places[name]
        assert found.pop(f"{name}.out" + ".partial" * is_broken) == out
        lines = failed_lines(found.pop(f"{name}.out.failed", b""))
        if is_broken:
            last = lines.pop()
            assert (last["kind"], last["record"]) == ("object", records)
        keys = ("record", "line", "byte", "raw", "output_row", "output_byte")
        assert [tuple(line[key] for key in keys) for line in lines] == failed
        assert all(line["object"] == IN + name for line in lines)
    assert found == {}
    good = sum(kind == GOOD for kinds, _ in objects for kind in kinds)
    assert (report.records_in, report.rows_out, report.rows_failed) == (number, good, number - good)
    assert report.objects_broken == broken
    assert report.exit_code == (1 if broken else 3 if number > good else 0)
    assert sum(report.failures.values()) == number - good + broken


def test_batches_cross_objects_but_not_tasks(stores):
    put(stores, {f"{n}.csv": rows(3, 3 * n) for n in range(5)})
    model = Doubler()
    with engine(model) as predictor:
        transform(stores, predictor=predictor, settings=make_settings(tasks={"task_objects_max": 2}))
    assert model.batch_rows == [4, 2, 4, 2, 3]


def test_archive_has_one_output_in_member_order(stores):
    put(stores, {"a.tar": tar({"1.csv": rows(5), "2.csv": b"x,1\n" + rows(5, 5)})})
    transform(stores)
    assert outputs(stores)["a.tar.out"] == doubled(10)
    (line,) = failed_lines(outputs(stores)["a.tar.out.failed"])
    assert (line["member"], line["record"], line["output_row"]) == ("2.csv", 0, 5)


def test_empty_archive_is_a_broken_object(stores):
    put(stores, {"a.tar": bytes(1024), "b.csv": rows(2)})
    report = transform(stores)
    assert outputs(stores)["b.csv.out"] == doubled(2)
    assert (report.objects_broken, report.exit_code) == (1, 1)


def test_transform_on_a_local_disk(tmp_path):
    for name, data in {"a.csv": rows(5), "sub/b.csv": b"", "sub/c.csv": b"x,1\n" + rows(1)}.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    out = f"{tmp_path}/out/"
    stores = Stores()
    transform(stores, source=f"{tmp_path}/in/", destination=out)
    found = outputs(stores, out)
    assert set(found) == {"a.csv.out", "sub/b.csv.out", "sub/c.csv.out", "sub/c.csv.out.failed"}
    assert (found["a.csv.out"], found["sub/b.csv.out"], found["sub/c.csv.out"]) == (
        doubled(5),
        b"",
        doubled(1),
    )


# Ranges


ADVERSARIAL = b"7,8\n" + b'1,"9\n,","\n,","\n,","\n,","\n,","\n,","\n"\n2,5\n'
CELLS = st.sampled_from(
    ["1,2", '"3",4', '"5\n",6', "x,1", "7", "-3,1", '"8",9\r', "", '"\n"",\n",1', "12,3\r"]
)
TEXTS = st.one_of(
    st.lists(CELLS, min_size=1, max_size=25).map(lambda lines: "\n".join(lines).encode() + b"\n"),
    st.lists(CELLS, min_size=1, max_size=25).map(lambda lines: "\n".join(lines).encode()),
    st.tuples(st.lists(CELLS, max_size=9), st.lists(CELLS, max_size=9)).map(
        lambda two: ("\n".join(two[0]) + '\n1,"never closed\n' + "\n".join(two[1])).encode()
    ),
    st.tuples(st.lists(CELLS, max_size=9), st.lists(CELLS, max_size=9)).map(
        lambda two: ("\n".join(two[0]) + "\n" + "1" * 70 + ",2\n" + "\n".join(two[1])).encode()
    ),
    st.just(ADVERSARIAL),
    st.just(b"\0\1\2" * 30),
)


@given(
    TEXTS,
    st.integers(5, 60),
    st.sampled_from(["none", "drop", "names"]),
    st.tuples(st.booleans(), st.booleans()),
)
def test_ranges_give_the_output_of_the_whole_object(shared, text, task_bytes, header, more):
    bom, joined = more
    if header != "none":
        text = b'"p\n1",q\n' + text
    if bom:
        text = b"\xef\xbb\xbf" + text
    stores = Stores()
    # The first object decides the properties of all records.
    put(stores, {"0.csv": b"p,q\n" * (header != "none") + b"1,2\n", "a.csv": text})
    options = {
        "read": {"header": header, "record_bytes_max": 50},
        "output": {"join": "input" if joined else "none"},
    }
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        whole = transform(
            stores, predictor=shared, settings=make_settings(**options), destination="memory://whole/"
        )
        run_settings = make_settings(**options, tasks={"task_bytes": task_bytes})
        run = make_transform(stores, predictor=shared, settings=run_settings)
        report = run.execute()
    if len(text) >= 2 * task_bytes:
        assert sum(not s.is_whole for t in run.plan.tasks for s in t.shards) >= 2
    assert outputs(stores) == outputs(stores, "memory://whole/")
    for name in (
        "records_in",
        "rows_out",
        "rows_failed",
        "objects_broken",
        "out_bytes",
        "failures",
        "exit_code",
    ):
        assert getattr(report, name) == getattr(whole, name)
    assert not [n for n in ledger_names(stores) if n.startswith("drafts/")]


def test_misplaced_range_is_scored_again(stores, monkeypatch, shared, caplog):
    allow_small_tasks(monkeypatch)
    put(stores, {"a.csv": ADVERSARIAL})
    transform(stores, predictor=shared, destination="memory://whole/")
    run_settings = make_settings(tasks={"task_bytes": 8})
    with caplog.at_level("INFO", "headrace.runs"):
        # In reverse order, no range knows the end of the previous one.
        run = make_transform(stores, predictor=shared, settings=run_settings)
        real = run._scoring._runner.run

        def backwards(work, tasks):
            return all(real(work, [task]) for task in reversed(tasks))

        run._scoring._runner.run = backwards
        run.execute()
    assert "scored again" in caplog.text
    assert outputs(stores) == outputs(stores, "memory://whole/")


@given(TEXTS, st.integers(5, 40), st.sampled_from(["none", "names"]), st.randoms())
def test_ranges_in_any_order_give_the_same_output(shared, text, task_bytes, header, random):
    """Like tasks of separate workers, which do not know the end of the previous range."""
    if header != "none":
        text = b"p,q\n" + text
    stores = Stores()
    put(stores, {"0.csv": b"p,q\n" * (header != "none") + b"1,2\n", "a.csv": text})
    options = {"read": {"header": header, "record_bytes_max": 50}}
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        transform(stores, predictor=shared, settings=make_settings(**options), destination="memory://whole/")
        run = make_transform(
            stores, predictor=shared, settings=make_settings(**options, tasks={"task_bytes": task_bytes})
        )
        shuffle(run, random)
        run.execute()
    assert outputs(stores) == outputs(stores, "memory://whole/")


LINES = st.sampled_from(
    ['{"x": [1, 2]}', '{"x": [-3, 2]}', '{"x": "\\n"}', "{", "", '{"x":  [5, 6]}\r', '"' + "a" * 60]
)


@given(st.lists(LINES, min_size=1, max_size=25), st.booleans(), st.integers(5, 60), st.randoms())
def test_json_line_ranges_in_any_order_give_the_same_output(shared, lines, ended, task_bytes, random):
    stores = Stores()
    put(stores, {"0.jsonl": b'{"x": [1, 2]}', "a.jsonl": ("\n".join(lines) + "\n" * ended).encode()})
    options = {"read": {"record_bytes_max": 50}, "output": {"join": "input"}}
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        transform(stores, predictor=shared, settings=make_settings(**options), destination="memory://whole/")
        run = make_transform(
            stores, predictor=shared, settings=make_settings(**options, tasks={"task_bytes": task_bytes})
        )
        shuffle(run, random)
        run.execute()
    assert outputs(stores) == outputs(stores, "memory://whole/")


@given(
    TEXTS,
    st.integers(5, 40),
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.tuples(st.booleans(), st.randoms()),
)
def test_interrupted_ranges_in_any_order_give_the_same_output(shared, text, task_bytes, breaks, more):
    """Guessed starts, checkpoints within ranges, and repeated ranges, all at once."""
    often, random = more
    stores = Stores()
    put(stores, {"0.csv": b"1,2\n", "a.csv": text})
    options = {"read": {"record_bytes_max": 50}}
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        transform(stores, predictor=shared, settings=make_settings(**options), destination="memory://whole/")
        run_settings = make_settings(
            **options,
            tasks={"task_bytes": task_bytes},
            checkpoint_s=0.0 if often else 1e9,
            flow={"batch_rows_max": 2},
        )
        for at in [*breaks, -1]:
            run = make_transform(
                stores, predictor=FailingPredictor(shared, at=at), settings=run_settings, if_exists="resume"
            )
            shuffle(run, random)
            with contextlib.suppress(InjectedError):
                report = run.execute()
    assert report.status == "complete"
    assert outputs(stores) == outputs(stores, "memory://whole/")


# Resuming


MIXED = {
    "a.csv": b"p,q\n" + rows(7) + b"x,1\n-3,1\n" + rows(6, 7),
    "b.csv.gz": gzip.compress(b"p,q\n" + rows(9, 20) + b"7\n", mtime=0),
    "c.csv": b"p,q\n",
    "d.csv.gz": gzip.compress(b"p,q\n" + rows(8, 40), mtime=0)[:-3],
    "e.tar": tar(
        {"1.csv": b"p,q\n" + rows(3), "2.csv": b"p,q\n" + rows(3, 3) + b"x,1\n", "3.csv": b"p,q\n1,"}
    ),
    "f.csv": b"p,q\n" + rows(30, 60) + b"x,1\n" + b'"8\n",1\n' * 4 + rows(10, 90),
    "g.csv": b"p,q\nx,1\n-2,1\n-3,1\n-4,1\n1\n" + rows(2),
}


def mixed(**more):
    return make_settings(read={"header": "names"}, tasks={"task_objects_max": 3, "task_bytes": 60}, **more)


@pytest.fixture(scope="module")
def uninterrupted(shared):
    stores = Stores()
    put(stores, MIXED)
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        predictor = FailingPredictor(shared, at=-1)
        report = transform(stores, predictor=predictor, settings=mixed())
    assert predictor.calls > 20
    return outputs(stores), report, predictor.calls


def same_counts(report, expected) -> bool:
    names = (
        "status",
        "objects_done",
        "records_in",
        "rows_out",
        "rows_failed",
        "objects_broken",
        "out_bytes",
        "failures",
    )
    return all(getattr(report, name) == getattr(expected, name) for name in names)


@for_each("checkpoint_s", [0.0, 1e9])
def test_resumption_after_any_batch_gives_the_same_output(shared, uninterrupted, monkeypatch, checkpoint_s):
    allow_small_tasks(monkeypatch)
    for at in range(uninterrupted[2]):
        stores = Stores()
        put(stores, MIXED)
        run_settings = mixed(checkpoint_s=checkpoint_s)
        with pytest.raises(InjectedError):
            transform(stores, predictor=FailingPredictor(shared, at=at), settings=run_settings)
        report = transform(stores, predictor=shared, settings=run_settings, if_exists="resume")
        assert outputs(stores) == uninterrupted[0], at
        assert same_counts(report, uninterrupted[1]), at
        assert not [n for n in ledger_names(stores) if n.startswith("drafts/") or "checkpoint" in n]


def test_repeated_interruptions_give_the_same_output(shared, uninterrupted, monkeypatch):
    """Each process gets two batches further than the one before."""
    allow_small_tasks(monkeypatch)
    stores = Stores()
    put(stores, MIXED)
    predictor = FailingPredictor(shared, at=2)
    times = 0
    while True:
        try:
            report = transform(stores, predictor=predictor, settings=mixed(**TINY), if_exists="resume")
            break
        except InjectedError:
            predictor.at = predictor.calls + 2
            times += 1
    assert times > uninterrupted[2] / 4
    assert outputs(stores) == uninterrupted[0]
    assert same_counts(report, uninterrupted[1])


@for_each("checkpoint_s", [0.0, 1e9])
def test_drain_after_any_batch_gives_the_same_output(shared, uninterrupted, monkeypatch, checkpoint_s):
    allow_small_tasks(monkeypatch)
    for at in range(0, uninterrupted[2], 2):
        stores = Stores()
        put(stores, MIXED)
        run_settings = mixed(checkpoint_s=checkpoint_s)
        predictor = FailingPredictor(shared, at=at)
        run = make_transform(stores, predictor=predictor, settings=run_settings)
        predictor.action = run.drain
        report = run.execute()
        assert (report.status, report.exit_code) == ("drained", 1)
        assert "report.json" not in ledger_names(stores)
        report = transform(stores, predictor=predictor, settings=run_settings, if_exists="resume")
        assert outputs(stores) == uninterrupted[0], at
        assert same_counts(report, uninterrupted[1]), at
        # Delivered batches are not repeated, except one at a task's end.
        assert predictor.calls <= uninterrupted[2] + 3


@for_each("checkpoint_s", [0.0, 1e9])
def test_store_failure_at_any_call_is_recovered(shared, uninterrupted, monkeypatch, checkpoint_s):
    allow_small_tasks(monkeypatch)
    monkeypatch.setattr("headrace.runs.output.BUFFER_BYTES_MAX", 30)
    monkeypatch.setattr("headrace.storage.draft.SEGMENT_BYTES", 20)
    plain = Stores()
    put(plain, MIXED)
    run_settings = mixed(checkpoint_s=checkpoint_s)
    counting = FlakyStore(MemoryStore())
    transform(OverlaidStores(plain, "memory://out/", counting), predictor=shared, settings=run_settings)
    failed, points = 0, range(1, counting.calls, max(1, counting.calls // levels.by_level(15, 40, 400)))
    for at in points:
        inner = MemoryStore()
        flaky = FailOnceStore(inner, at=at, write_first=bool(at % 2))
        stores = OverlaidStores(plain, "memory://out/", flaky)
        with contextlib.suppress(UnavailableError):
            transform(stores, predictor=shared, settings=run_settings)
        failed += flaky.failed
        whole = OverlaidStores(plain, "memory://out/", inner)
        report = transform(whole, predictor=shared, settings=run_settings, if_exists="resume")
        assert outputs(whole) == uninterrupted[0], at
        assert same_counts(report, uninterrupted[1]), at
    assert failed > len(points) / 2


def test_source_failure_at_any_call_is_recovered(shared, uninterrupted, monkeypatch):
    allow_small_tasks(monkeypatch)
    plain = Stores()
    put(plain, MIXED)
    run_settings = mixed(**TINY)
    for at in range(1, 60, levels.by_level(8, 4, 1)):
        out = MemoryStore()
        flaky = FailOnceStore(plain.for_uri(IN), at=at, write_first=False)
        with contextlib.suppress(UnavailableError):
            transform(
                OverlaidStores(OverlaidStores(plain, IN, flaky), "memory://out/", out),
                predictor=shared,
                settings=run_settings,
            )
        stores = OverlaidStores(plain, "memory://out/", out)
        report = transform(stores, predictor=shared, settings=run_settings, if_exists="resume")
        assert outputs(stores) == uninterrupted[0], at
        assert same_counts(report, uninterrupted[1]), at


def test_object_broken_after_a_checkpoint_breaks_at_the_same_position(shared, stores):
    put(stores, {"a.csv.gz": gzip.compress(rows(8), mtime=0)[:-3]})
    transform(stores, predictor=shared, destination="memory://whole/")
    predictor = FailingPredictor(shared, at=1)
    run = make_transform(stores, predictor=predictor)
    predictor.action = run.drain
    run.execute()
    transform(stores, predictor=shared, if_exists="resume")
    assert outputs(stores) == outputs(stores, "memory://whole/")


@for_each(
    "change",
    [
        {"a.csv": rows(41)},
        {"0.csv": rows(1)},
        {"a.csv": None},
        {"a.csv": None, "b.csv": rows(1)},
    ],
)
def test_changed_source_refuses_resumption(shared, change):
    stores = Stores()
    put(stores, {"a.csv": rows(40)})
    with pytest.raises(InjectedError):
        transform(stores, predictor=FailingPredictor(shared, at=3))
    before = outputs(stores)
    for name, data in change.items():
        stores.for_uri(IN).delete(IN + name)
        if data is not None:
            put(stores, {name: data})
    with pytest.raises(
        (ResumeRefusedError, EmptySourceError), match=r"has changed|is new|is missing|no object"
    ):
        transform(stores, predictor=shared, if_exists="resume")
    assert outputs(stores) == before


@for_each(
    ("changed", "what"),
    [
        ({"identity": "another"}, "model was 'm', is 'another'"),
        ({"source": "memory://in/a.csv"}, "source was"),
        (
            {"settings": make_settings(output={"join": "input"})},
            "settings.output.join was 'none', is 'input'",
        ),
        ({"settings": make_settings(flow={"batch_rows_max": 3})}, "settings.batch was"),
        ({"settings": make_settings(tasks={"task_bytes": 7})}, "settings.tasks was"),
    ],
)
def test_different_run_refuses_resumption(shared, changed, what):
    stores = Stores()
    put(stores, {"a.csv": rows(40)})
    with pytest.raises(InjectedError):
        transform(stores, predictor=FailingPredictor(shared, at=3))
    with pytest.raises(ResumeRefusedError, match=what):
        transform(stores, predictor=shared, if_exists="resume", **changed)


def test_finished_run_resumes_to_its_report(shared, stores):
    put(stores, {"a.csv": rows(9)})
    report = transform(stores, predictor=shared)
    put(stores, {"b.csv": rows(9)})
    predictor = FailingPredictor(shared, at=0)
    assert transform(stores, predictor=predictor, if_exists="resume") == report
    assert predictor.calls == 0


def test_resume_starts_a_new_run(shared, stores):
    put(stores, {"a.csv": rows(9)})
    assert transform(stores, predictor=shared, if_exists="resume").rows_out == 9


def test_higher_failure_limit_continues_the_run(shared, stores):
    """Batches delivered before the stop are in the output once."""
    put(stores, {"a.csv": rows(6) + b"x,1\ny,1\n" + rows(6, 6), "b.csv": rows(9)})
    transform(stores, predictor=shared, destination="memory://whole/")
    for checkpoint_s in (0.0, 1e9):
        run_settings = make_settings(failures={"failed_rows_max": 1}, checkpoint_s=checkpoint_s)
        with pytest.raises(TooManyFailuresError, match="2 records failed, and failed_rows_max is 1"):
            transform(stores, predictor=shared, settings=run_settings, if_exists="overwrite")
        with pytest.raises(TooManyFailuresError):
            transform(stores, predictor=shared, settings=run_settings, if_exists="resume")
        run_settings = make_settings(failures={"failed_rows_max": 2})
        report = transform(stores, predictor=shared, settings=run_settings, if_exists="resume")
        assert outputs(stores) == outputs(stores, "memory://whole/")
        assert (report.records_in, report.rows_out, report.rows_failed) == (23, 21, 2)


def test_failures_before_a_checkpoint_count_for_the_limit(shared, stores):
    """The limit applies to the run across all its processes."""
    put(stores, {"a.csv": b"x,1\n" + rows(20) + b"y,1\nz,1\n" + rows(20)})
    run_settings = make_settings(failures={"failed_rows_max": 2}, **TINY)
    with pytest.raises(InjectedError):
        transform(stores, predictor=FailingPredictor(shared, at=4), settings=run_settings)
    with pytest.raises(TooManyFailuresError, match="3 records failed"):
        transform(stores, predictor=shared, settings=run_settings, if_exists="resume")


def test_failures_count_once_across_resumptions(shared, stores):
    put(stores, {"a.csv": b"x,1\ny,1\n" + rows(40)})
    run_settings = make_settings(failures={"failed_rows_max": 2}, **TINY)
    predictor = FailingPredictor(shared, at=3)
    for _ in range(3):
        with pytest.raises(InjectedError):
            transform(stores, predictor=predictor, settings=run_settings, if_exists="resume")
        predictor.at = predictor.calls + 2
    assert transform(stores, predictor=shared, settings=run_settings, if_exists="resume").rows_failed == 2


# Existing outputs


def test_existing_output_is_refused_or_overwritten(shared, stores):
    put(stores, {"a.csv": rows(9), "b.csv": b"x,1\n" + rows(1)})
    transform(stores, predictor=shared)
    with pytest.raises(OutputExistsError):
        transform(stores, predictor=shared)
    stores.for_uri(IN).delete(IN + "b.csv")
    put(stores, {"a.csv": rows(2)})
    report = transform(stores, predictor=shared, if_exists="overwrite")
    assert outputs(stores) == {"a.csv.out": doubled(2)}
    assert report.objects == 1


def test_overwrite_deletes_only_the_transforms_outputs(shared, stores):
    put(stores, {"a.csv": b"x,1\n" + rows(2)})
    put(stores, {"notes.txt": b"mine", "a.csv.out.bak": b"mine", "b.csv.out": b"mine"}, OUT)
    transform(stores, predictor=shared)
    transform(stores, predictor=shared, if_exists="overwrite")
    found = outputs(stores)
    assert [found[n] for n in ("notes.txt", "a.csv.out.bak", "b.csv.out")] == [b"mine"] * 3
    assert found["a.csv.out"] == doubled(2)


@for_each(("source", "data"), [("memory://mistyped/", b"1,2\n"), ("memory://in/", b"1,2,3\n")])
def test_invalid_run_keeps_the_existing_output(shared, source, data):
    stores = Stores()
    put(stores, {"a.csv": rows(9)})
    transform(stores, predictor=shared)
    before = outputs(stores), ledger_names(stores)
    put(stores, {"a.csv": data})
    with pytest.raises((EmptySourceError, ModelInputError)):
        transform(stores, predictor=shared, source=source, if_exists="overwrite")
    assert (outputs(stores), ledger_names(stores)) == before


def test_misfit_model_leaves_no_files(shared, stores):
    put(stores, {"a.csv": b"1,2,3\n"})
    with pytest.raises(ModelInputError, match="takes 2 numbers"):
        transform(stores, predictor=shared)
    assert list(stores.for_uri(OUT).list(OUT)) == []
    put(stores, {"a.csv": rows(1)})
    assert transform(stores, predictor=shared).rows_out == 1


def test_killed_overwrite_never_mixes_runs(shared):
    plain = Stores()
    put(plain, {"a.csv": rows(9), "b.csv": b"x,1\n"})
    for at in range(1, 40, levels.by_level(2, 1, 1)):
        inner = MemoryStore()
        whole = OverlaidStores(plain, "memory://out/", inner)
        transform(whole, predictor=shared)
        old = outputs(whole)
        other = Stores()
        put(other, {"a.csv": rows(2)})
        flaky = FailOnceStore(inner, at=at, write_first=True)
        run_settings = OverlaidStores(other, "memory://out/", flaky)
        with contextlib.suppress(UnavailableError):
            transform(run_settings, predictor=shared, if_exists="overwrite")
        resumed_stores = OverlaidStores(other, "memory://out/", inner)
        # The old run is whole or refused, or there is none, or the new one.
        with contextlib.suppress(ResumeRefusedError):
            transform(resumed_stores, predictor=shared, if_exists="resume")
            assert outputs(resumed_stores) in (old, {"a.csv.out": doubled(2)}), at
        report = transform(resumed_stores, predictor=shared, if_exists="overwrite")
        assert outputs(resumed_stores) == {"a.csv.out": doubled(2)}, at
        assert (report.records_in, report.tasks) == (2, 1), at


def test_output_of_a_stream_is_refused(shared, stores):
    put(stores, {"a.csv": rows(9)})
    put(stores, {"_headrace/run.json": b'{"v": 1}', "part-00000.csv": b"1\n"}, OUT)
    for if_exists in ("refuse", "resume", "overwrite"):
        with pytest.raises(LedgerError, match="output of headrace stream"):
            transform(stores, predictor=shared, if_exists=if_exists)
    assert outputs(stores) == {"part-00000.csv": b"1\n"}


@for_each("at", range(0, 24, levels.by_level(6, 2, 1)))
def test_second_run_on_the_destination_is_harmless(shared, uninterrupted, monkeypatch, at):
    """The second run starts and finishes while the first scores a batch."""
    allow_small_tasks(monkeypatch)
    stores = Stores()
    put(stores, MIXED)
    with engine() as second:
        predictor = FailingPredictor(
            shared,
            at=at,
            action=lambda: transform(stores, predictor=second, settings=mixed(), if_exists="resume"),
        )
        with contextlib.suppress(HeadraceError):
            transform(stores, predictor=predictor, settings=mixed())
    assert outputs(stores) == uninterrupted[0]
    assert same_counts(
        transform(stores, predictor=shared, settings=mixed(), if_exists="resume"), uninterrupted[1]
    )


@for_each("at", range(0, 24, levels.by_level(6, 2, 1)))
def test_tasks_of_another_process_are_reused(shared, uninterrupted, monkeypatch, at):
    """The other process is drained halfway while the first scores a batch."""
    allow_small_tasks(monkeypatch)
    stores = Stores()
    put(stores, MIXED)
    with engine() as second:
        inner = FailingPredictor(second, at=12)
        other = make_transform(stores, predictor=inner, settings=mixed(), if_exists="resume")
        inner.action = other.drain
        predictor = FailingPredictor(shared, at=at, action=other.execute)
        report = transform(stores, predictor=predictor, settings=mixed())
    assert outputs(stores) == uninterrupted[0]
    assert same_counts(report, uninterrupted[1])


@for_each("local", [False, True])
def test_racing_runs_are_harmless(uninterrupted, monkeypatch, tmp_path, local):
    """A run may fail because the other removes its drafts, but published outputs are whole."""
    allow_small_tasks(monkeypatch)
    monkeypatch.setattr("headrace.runs.output.BUFFER_BYTES_MAX", 20)
    for turn in range(levels.by_level(2, 4, 40)):
        stores = Stores()
        put(stores, MIXED)
        out = f"{tmp_path}/{turn}/" if local else f"memory://out/{turn}/"
        start = threading.Barrier(2)

        def race(stores=stores, out=out, start=start):
            with engine() as predictor, contextlib.suppress(HeadraceError):
                start.wait(10)
                transform(
                    stores, predictor=predictor, destination=out, settings=mixed(**TINY), if_exists="resume"
                )

        threads = [threading.Thread(target=race) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        report = transform(stores, destination=out, settings=mixed(**TINY), if_exists="resume")
        assert outputs(stores, out) == uninterrupted[0]
        assert same_counts(report, uninterrupted[1])


# Large outputs on disk


@for_each("checkpoint_s", [0.0, 1e9])
def test_large_outputs_on_disk_survive_interruptions(
    shared, uninterrupted, monkeypatch, tmp_path, checkpoint_s
):
    allow_small_tasks(monkeypatch)
    monkeypatch.setattr("headrace.runs.output.BUFFER_BYTES_MAX", 20)
    for name, data in MIXED.items():
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    source, run_settings = f"{tmp_path}/in/", mixed(checkpoint_s=checkpoint_s)
    for at in range(0, uninterrupted[2], levels.by_level(12, 4, 1)):
        folder = f"out-{at}-{checkpoint_s:g}"
        stores, out = Stores(), f"{tmp_path}/{folder}/"
        with pytest.raises(InjectedError):
            transform(
                stores,
                predictor=FailingPredictor(shared, at=at),
                source=source,
                destination=out,
                settings=run_settings,
            )
        report = transform(
            stores,
            predictor=shared,
            source=source,
            destination=out,
            settings=run_settings,
            if_exists="resume",
        )
        found = {n: d.replace(source.encode(), IN.encode()) for n, d in outputs(stores, out).items()}
        assert found == uninterrupted[0], at
        assert same_counts(report, uninterrupted[1])
        assert not list((tmp_path / folder / "_headrace" / "drafts").iterdir())


def test_kill_between_publish_and_commit_is_recovered(shared, monkeypatch, tmp_path):
    monkeypatch.setattr("headrace.runs.output.BUFFER_BYTES_MAX", 20)
    (tmp_path / "a.csv").write_bytes(rows(40) + b"x,1\n" * 5)
    run_settings = make_settings(**TINY)
    commit = Ledger.commit_task
    monkeypatch.setattr(Ledger, "commit_task", lambda *_: (_ for _ in ()).throw(InjectedError))
    source, out = f"{tmp_path}/a.csv", f"{tmp_path}/out/"
    with pytest.raises(InjectedError):
        transform(Stores(), predictor=shared, source=source, destination=out, settings=run_settings)
    assert (tmp_path / "out" / "a.csv.out").read_bytes() == doubled(40)
    monkeypatch.setattr(Ledger, "commit_task", commit)
    predictor = FailingPredictor(shared, at=-1)
    transform(
        Stores(),
        predictor=predictor,
        source=source,
        destination=out,
        settings=run_settings,
        if_exists="resume",
    )
    assert (tmp_path / "out" / "a.csv.out").read_bytes() == doubled(40)
    assert predictor.calls <= 1


# Failure policies


def test_on_error_object_suppresses_the_output(shared, stores):
    put(
        stores,
        {"a.csv": rows(3) + b"x,1\n" + rows(3), "b.csv": rows(2), "c.csv.gz": gzip.compress(rows(2))[:-3]},
    )
    report = transform(stores, predictor=shared, settings=make_settings(failures={"on_error": "object"}))
    found = outputs(stores)
    assert set(found) == {"a.csv.out.failed", "b.csv.out", "c.csv.gz.out.failed"}
    assert found["b.csv.out"] == doubled(2)
    assert [line["raw"] for line in failed_lines(found["a.csv.out.failed"])] == ["x,1"]
    assert (report.status, report.exit_code, report.objects_suppressed) == ("failed", 1, 2)
    assert report.records_in == report.rows_out + report.rows_failed + report.rows_suppressed
    assert (report.rows_out, report.rows_failed, report.rows_suppressed) == (2, 1, 8)
    assert report.out_bytes == len(doubled(2))
    assert all(entry["suppressed"] for entry in report.failed_objects)
    assert (
        transform(
            stores,
            predictor=shared,
            settings=make_settings(failures={"on_error": "object"}),
            if_exists="resume",
        )
        == report
    )


def test_on_error_object_skips_the_rest_of_the_object(stores):
    put(stores, {"a.csv": b"-1,1\n" + rows(400), "b.csv": rows(4)})
    model = Doubler()
    run_settings = make_settings(
        failures={"on_error": "object"},
        flow={"range_bytes": 64, "prefetch_bytes_max": 64, "window_bytes_max": 64},
    )
    with engine(model, in_flight_max=1) as predictor:
        report = transform(stores, predictor=predictor, settings=run_settings)
    assert report.records_in < 300
    assert outputs(stores)["b.csv.out"] == doubled(4)
    assert set(outputs(stores)) == {"a.csv.out.failed", "b.csv.out"}


@given(TEXTS, st.integers(5, 40), st.randoms())
def test_on_error_object_suppresses_an_object_in_ranges(shared, text, task_bytes, random):
    stores = Stores()
    put(stores, {"0.csv": b"1,2\n", "a.csv": text})
    options = {"read": {"record_bytes_max": 50}, "failures": {"on_error": "object"}}
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        whole = transform(
            stores, predictor=shared, settings=make_settings(**options), destination="memory://whole/"
        )
        run = make_transform(
            stores, predictor=shared, settings=make_settings(**options, tasks={"task_bytes": task_bytes})
        )
        shuffle(run, random)
        report = run.execute()
    assert (report.status, report.objects_suppressed) == (whole.status, whole.objects_suppressed)
    assert set(outputs(stores)) == set(outputs(stores, "memory://whole/"))
    if not whole.objects_suppressed:
        assert outputs(stores) == outputs(stores, "memory://whole/")
    # The positions of failed records are right in any case.
    for line in failed_lines(outputs(stores).get("a.csv.out.failed", b"")):
        if line["kind"] != "object":
            assert text.decode()[line["byte"] :].startswith(line["raw"])
            assert text[: line["byte"]].count(b"\n") + 1 == line["line"]


def test_on_error_job_stops_the_run(shared, stores):
    put(stores, {"a.csv": rows(8), "b.csv": b"x,1\n" + rows(8)})
    run_settings = make_settings(failures={"on_error": "job"})
    for if_exists in ("refuse", "resume"):
        with pytest.raises(
            TooManyFailuresError,
            match=r"b\.csv, record 0, line 1, byte 0: a record failed, and on_error is job",
        ):
            transform(stores, predictor=shared, settings=run_settings, if_exists=if_exists)
    assert "_report.json" not in [i.uri for i in stores.for_uri(OUT).list(OUT)]


@for_each(("share", "stops"), [(0.0, True), (0.24, True), (0.25, False), (1.0, False)])
def test_failed_share_is_checked_at_the_end(shared, share, stops):
    stores = Stores()
    put(stores, {"a.csv": b"x,1\n" + rows(3)})
    run_settings = make_settings(failures={"failed_share_max": share})
    if not stops:
        assert transform(stores, predictor=shared, settings=run_settings).exit_code == 3
        return
    with pytest.raises(TooManyFailuresError, match="1 of 4 records failed"):
        transform(stores, predictor=shared, settings=run_settings)
    assert "report.json" not in ledger_names(stores)
    run_settings = make_settings(failures={"failed_share_max": 0.5})
    predictor = FailingPredictor(shared, at=0)
    assert transform(stores, predictor=predictor, settings=run_settings, if_exists="resume").rows_failed == 1


def test_failed_share_is_checked_after_enough_records(shared, stores, monkeypatch):
    monkeypatch.setattr("headrace.runs.failure_policy.SHARE_ROWS_MIN", 12)
    put(stores, {"a.csv": b"x,1\n" + rows(7) + b"y,1\n" * 4 + rows(400)})
    predictor = FailingPredictor(shared, at=-1)
    bounded = make_settings(failures={"failed_share_max": 0.2}, flow={"window_bytes_max": 1})
    with pytest.raises(TooManyFailuresError, match="5 of 12 records"):
        transform(stores, predictor=predictor, settings=bounded)
    assert predictor.calls < 50


def test_deleted_object_is_a_broken_object(shared, monkeypatch, tmp_path):
    """The object is read in ranges."""
    allow_small_tasks(monkeypatch)
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.csv").write_bytes(rows(20))
    out = f"{tmp_path}/out/"
    stores = Stores()
    run_settings = make_settings(
        tasks={"task_bytes": 30}, flow={"prefetch_bytes_max": 1, "window_bytes_max": 1}
    )
    with engine(in_flight_max=1) as predictor:
        breaking = FailingPredictor(predictor, at=0, action=(tmp_path / "in" / "b.csv").unlink)
        report = transform(
            stores, predictor=breaking, source=f"{tmp_path}/in/", destination=out, settings=run_settings
        )
    found = outputs(stores, out)
    assert (found["a.csv.out"], found["c.csv.out"]) == (doubled(20), doubled(20))
    assert report.exit_code == 1
    assert {line["kind"] for line in failed_lines(found["b.csv.out.failed"])} == {"object"}


def test_object_broken_in_a_range_keeps_the_read_records(shared, monkeypatch, stores):
    """Ranges after the broken one are neither checked nor repeated."""
    allow_small_tasks(monkeypatch)
    put(stores, {"a.csv": rows(60)})
    run_settings = make_settings(
        tasks={"task_bytes": 40}, flow={"prefetch_bytes_max": 1, "window_bytes_max": 1}
    )
    with engine(in_flight_max=1) as predictor:
        breaking = FailingPredictor(predictor, at=7, action=lambda: put(stores, {"a.csv": rows(61)}))
        report = transform(stores, predictor=breaking, settings=run_settings)
    found = outputs(stores)["a.csv.out.partial"]
    assert "a.csv.out" not in outputs(stores)
    assert len(found) > 10
    assert doubled(60).startswith(found)
    assert report.objects_broken == 1
    assert report.records_in == found.count(b"\n")
