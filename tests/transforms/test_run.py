"""The whole of a transform: what is written where, what a kill costs, what is refused."""

import contextlib
import gzip
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from headrace.storage.memory import MemoryStore
from headrace.storage.resolve import Stores
from headrace.testing import FlakyStore
from headrace.transforms.ledger import TransformLedger
from transforms.support import (
    IN,
    OUT,
    Breaking,
    BrokenError,
    Doubler,
    FailsOnce,
    WithStore,
    cut,
    engine,
    failed_lines,
    ledger_names,
    made,
    outputs,
    put,
    rows,
    settings_of,
    shuffle,
    tar,
    transform,
)

TINY = {"checkpoint_s": 0.0}
"""A checkpoint after every batch."""


def doubled(count: int, start: int = 0) -> bytes:
    return b"".join(b"%.1f\n" % (2.0 * i) for i in range(start, start + count))


# What is written


def test_each_object_has_its_own_output_and_a_model_sees_full_batches(stores):
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


@settings(deadline=None, max_examples=60)
@given(OBJECTS, st.integers(1, 5), st.booleans())
def test_every_record_is_in_its_own_objects_output_or_failures(shared, objects, task_objects_max, header):
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
        expected[name] = out
        places[name] = (failed, packing == "broken gz", len(kinds))
    used = settings_of(
        read={"header": "names" if header else "none"}, tasks={"task_objects_max": task_objects_max}
    )
    good_widths = any(k != BAD_WIDTH for kinds, _ in objects for k in kinds)
    if not good_widths and number:
        return  # a source in which no record fits is refused, which is tested elsewhere
    report = transform(stores, predictor=shared, settings=used)
    found = outputs(stores)
    for name, out in expected.items():
        assert found.pop(f"{name}.out") == out
        failed, is_broken, records = places[name]
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
        transform(stores, predictor=predictor, settings=settings_of(tasks={"task_objects_max": 2}))
    assert model.batch_rows == [4, 2, 4, 2, 3]


def test_an_archive_has_one_output_with_its_members_in_order(stores):
    put(stores, {"a.tar": tar({"1.csv": rows(5), "2.csv": b"x,1\n" + rows(5, 5)})})
    transform(stores)
    assert outputs(stores)["a.tar.out"] == doubled(10)
    (line,) = failed_lines(outputs(stores)["a.tar.out.failed"])
    assert (line["member"], line["record"], line["output_row"]) == ("2.csv", 0, 5)


def test_an_empty_archive_costs_itself(stores):
    put(stores, {"a.tar": bytes(1024), "b.csv": rows(2)})
    report = transform(stores)
    assert outputs(stores)["b.csv.out"] == doubled(2)
    assert (report.objects_broken, report.exit_code) == (1, 1)


def test_on_a_disk_too(tmp_path):
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


@settings(deadline=None, max_examples=120)
@given(
    TEXTS,
    st.integers(5, 60),
    st.sampled_from(["none", "drop", "names"]),
    st.tuples(st.booleans(), st.booleans()),
)
def test_an_object_in_ranges_is_written_as_it_is_uncut(shared, text, task_bytes, header, more):
    bom, joined = more
    if header != "none":
        text = b'"p\n1",q\n' + text
    if bom:
        text = b"\xef\xbb\xbf" + text
    stores = Stores()
    # The first object decides how records are judged.
    put(stores, {"0.csv": b"p,q\n" * (header != "none") + b"1,2\n", "a.csv": text})
    options = {
        "read": {"header": header, "record_bytes_max": 50},
        "output": {"join": "input" if joined else "none"},
    }
    with pytest.MonkeyPatch.context() as patch:
        cut(patch)
        whole = transform(
            stores, predictor=shared, settings=settings_of(**options), destination="memory://whole/"
        )
        used = settings_of(**options, tasks={"task_bytes": task_bytes})
        run = made(stores, predictor=shared, settings=used)
        report = run.execute()
    if len(text) >= 2 * task_bytes:
        assert sum(not s.whole for t in run.plan.tasks for s in t.shards) >= 2
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


def test_a_range_that_was_guessed_wrong_is_done_again(stores, monkeypatch, shared, caplog):
    cut(monkeypatch)
    put(stores, {"a.csv": ADVERSARIAL})
    transform(stores, predictor=shared, destination="memory://whole/")
    used = settings_of(tasks={"task_bytes": 8})
    with caplog.at_level("INFO", "headrace.transform"):
        # Only the last task is left, so nobody tells where its range begins.
        run = made(stores, predictor=shared, settings=used)
        real = run._runner.run

        def backwards(work, tasks, *, begins, checkpoints):
            return all(real(work, [task], begins=begins, checkpoints=checkpoints) for task in reversed(tasks))

        run._runner.run = backwards
        run.execute()
    assert "done again" in caplog.text
    assert outputs(stores) == outputs(stores, "memory://whole/")


@settings(deadline=None, max_examples=120)
@given(TEXTS, st.integers(5, 40), st.sampled_from(["none", "names"]), st.randoms())
def test_ranges_in_any_order_come_to_the_same(shared, text, task_bytes, header, random):
    """As if each task were another worker's: nobody knows where the range before it ends."""
    if header != "none":
        text = b"p,q\n" + text
    stores = Stores()
    put(stores, {"0.csv": b"p,q\n" * (header != "none") + b"1,2\n", "a.csv": text})
    options = {"read": {"header": header, "record_bytes_max": 50}}
    with pytest.MonkeyPatch.context() as patch:
        cut(patch)
        transform(stores, predictor=shared, settings=settings_of(**options), destination="memory://whole/")
        run = made(
            stores, predictor=shared, settings=settings_of(**options, tasks={"task_bytes": task_bytes})
        )
        shuffle(run, random)
        run.execute()
    assert outputs(stores) == outputs(stores, "memory://whole/")


LINES = st.sampled_from(
    ['{"x": [1, 2]}', '{"x": [-3, 2]}', '{"x": "\\n"}', "{", "", '{"x":  [5, 6]}\r', '"' + "a" * 60]
)


@settings(deadline=None, max_examples=40)
@given(st.lists(LINES, min_size=1, max_size=25), st.booleans(), st.integers(5, 60), st.randoms())
def test_lines_of_json_in_ranges_in_any_order(shared, lines, ended, task_bytes, random):
    stores = Stores()
    put(stores, {"0.jsonl": b'{"x": [1, 2]}', "a.jsonl": ("\n".join(lines) + "\n" * ended).encode()})
    options = {"read": {"record_bytes_max": 50}, "output": {"join": "input"}}
    with pytest.MonkeyPatch.context() as patch:
        cut(patch)
        transform(stores, predictor=shared, settings=settings_of(**options), destination="memory://whole/")
        run = made(
            stores, predictor=shared, settings=settings_of(**options, tasks={"task_bytes": task_bytes})
        )
        shuffle(run, random)
        run.execute()
    assert outputs(stores) == outputs(stores, "memory://whole/")


@settings(deadline=None, max_examples=60)
@given(
    TEXTS,
    st.integers(5, 40),
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.tuples(st.booleans(), st.randoms()),
)
def test_ranges_in_any_order_that_are_broken_and_resumed(shared, text, task_bytes, breaks, more):
    """Guessed begins, checkpoints within ranges, and ranges that are done again, all at once."""
    often, random = more
    stores = Stores()
    put(stores, {"0.csv": b"1,2\n", "a.csv": text})
    options = {"read": {"record_bytes_max": 50}}
    tasks = {"task_bytes": task_bytes, "checkpoint_s": 0.0 if often else 1e9}
    with pytest.MonkeyPatch.context() as patch:
        cut(patch)
        transform(stores, predictor=shared, settings=settings_of(**options), destination="memory://whole/")
        used = settings_of(**options, tasks=tasks, flow={"batch_rows_max": 2})
        for at in [*breaks, -1]:
            run = made(stores, predictor=Breaking(shared, at=at), settings=used, if_exists="resume")
            shuffle(run, random)
            with contextlib.suppress(BrokenError):
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


def mixed(**tasks):
    return settings_of(read={"header": "names"}, tasks={"task_objects_max": 3, "task_bytes": 60, **tasks})


@pytest.fixture(scope="module")
def undisturbed(shared):
    stores = Stores()
    put(stores, MIXED)
    with pytest.MonkeyPatch.context() as patch:
        cut(patch)
        predictor = Breaking(shared, at=-1)
        report = transform(stores, predictor=predictor, settings=mixed())
    assert predictor.asked > 20
    return outputs(stores), report, predictor.asked


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


@pytest.mark.parametrize("checkpoint_s", [0.0, 1e9])
def test_broken_after_any_batch_a_resumed_run_writes_the_same(shared, undisturbed, monkeypatch, checkpoint_s):
    cut(monkeypatch)
    for at in range(undisturbed[2]):
        stores = Stores()
        put(stores, MIXED)
        used = mixed(checkpoint_s=checkpoint_s)
        with pytest.raises(BrokenError):
            transform(stores, predictor=Breaking(shared, at=at), settings=used)
        report = transform(stores, predictor=shared, settings=used, if_exists="resume")
        assert outputs(stores) == undisturbed[0], at
        assert same_counts(report, undisturbed[1]), at
        assert not [n for n in ledger_names(stores) if n.startswith("drafts/") or "checkpoint" in n]


def test_broken_again_and_again_it_comes_to_the_same(shared, undisturbed, monkeypatch):
    """Each process gets two batches further than the one before."""
    cut(monkeypatch)
    stores = Stores()
    put(stores, MIXED)
    predictor = Breaking(shared, at=2)
    times = 0
    while True:
        try:
            report = transform(stores, predictor=predictor, settings=mixed(**TINY), if_exists="resume")
            break
        except BrokenError:
            predictor.at = predictor.asked + 2
            times += 1
    assert times > undisturbed[2] / 4
    assert outputs(stores) == undisturbed[0]
    assert same_counts(report, undisturbed[1])


@pytest.mark.parametrize("checkpoint_s", [0.0, 1e9])
def test_drained_after_any_batch_a_resumed_run_writes_the_same(
    shared, undisturbed, monkeypatch, checkpoint_s
):
    cut(monkeypatch)
    for at in range(0, undisturbed[2], 2):
        stores = Stores()
        put(stores, MIXED)
        used = mixed(checkpoint_s=checkpoint_s)
        predictor = Breaking(shared, at=at)
        run = made(stores, predictor=predictor, settings=used)
        predictor.action = run.drain
        report = run.execute()
        assert (report.status, report.exit_code) == ("drained", 1)
        assert "report.json" not in ledger_names(stores)
        report = transform(stores, predictor=predictor, settings=used, if_exists="resume")
        assert outputs(stores) == undisturbed[0], at
        assert same_counts(report, undisturbed[1]), at
        # What was delivered is not done twice: a batch at most is begun anew at each task's end.
        assert predictor.asked <= undisturbed[2] + 3


@pytest.mark.parametrize("checkpoint_s", [0.0, 1e9])
def test_a_store_that_fails_at_any_call_costs_nothing_but_a_resumption(
    shared, undisturbed, monkeypatch, checkpoint_s
):
    cut(monkeypatch)
    monkeypatch.setattr("headrace.transforms.spool.HELD_BYTES_MAX", 30)
    monkeypatch.setattr("headrace.storage.draft.SEGMENT_BYTES", 20)
    plain = Stores()
    put(plain, MIXED)
    used = mixed(checkpoint_s=checkpoint_s)
    counting = FlakyStore(MemoryStore())
    transform(WithStore(plain, "memory://out/", counting), predictor=shared, settings=used)
    failed = 0
    for at in range(1, counting.calls, max(1, counting.calls // 40)):
        inner = MemoryStore()
        flaky = FailsOnce(inner, at=at, done=bool(at % 2))
        stores = WithStore(plain, "memory://out/", flaky)
        with contextlib.suppress(UnavailableError):
            transform(stores, predictor=shared, settings=used)
        failed += flaky.failed
        whole = WithStore(plain, "memory://out/", inner)
        report = transform(whole, predictor=shared, settings=used, if_exists="resume")
        assert outputs(whole) == undisturbed[0], at
        assert same_counts(report, undisturbed[1]), at
    assert failed > 20


def test_a_source_that_fails_at_any_call_costs_nothing_but_a_resumption(shared, undisturbed, monkeypatch):
    cut(monkeypatch)
    plain = Stores()
    put(plain, MIXED)
    used = mixed(**TINY)
    for at in range(1, 60, 4):
        out = MemoryStore()
        flaky = FailsOnce(plain.for_uri(IN), at=at, done=False)
        with contextlib.suppress(UnavailableError):
            transform(
                WithStore(WithStore(plain, IN, flaky), "memory://out/", out), predictor=shared, settings=used
            )
        stores = WithStore(plain, "memory://out/", out)
        report = transform(stores, predictor=shared, settings=used, if_exists="resume")
        assert outputs(stores) == undisturbed[0], at
        assert same_counts(report, undisturbed[1]), at


def test_an_object_that_breaks_behind_a_checkpoint_breaks_at_the_same_place(shared, stores):
    put(stores, {"a.csv.gz": gzip.compress(rows(8), mtime=0)[:-3]})
    transform(stores, predictor=shared, destination="memory://whole/")
    predictor = Breaking(shared, at=1)
    run = made(stores, predictor=predictor)
    predictor.action = run.drain
    run.execute()
    transform(stores, predictor=shared, if_exists="resume")
    assert outputs(stores) == outputs(stores, "memory://whole/")


@pytest.mark.parametrize(
    "change",
    [
        {"a.csv": rows(41)},
        {"0.csv": rows(1)},
        {"a.csv": None},
        {"a.csv": None, "b.csv": rows(1)},
    ],
)
def test_a_source_that_changed_is_not_resumed(shared, stores, change):
    put(stores, {"a.csv": rows(40)})
    with pytest.raises(BrokenError):
        transform(stores, predictor=Breaking(shared, at=3))
    before = outputs(stores)
    for name, data in change.items():
        stores.for_uri(IN).delete(IN + name)
        if data is not None:
            put(stores, {name: data})
    with pytest.raises(
        (ResumeRefusedError, EmptySourceError), match=r"another object now|is new|is gone|no object"
    ):
        transform(stores, predictor=shared, if_exists="resume")
    assert outputs(stores) == before


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"identity": "another"}, "model was 'm', is 'another'"),
        ({"source": "memory://in/a.csv"}, "source was"),
        ({"settings": settings_of(output={"join": "input"})}, "settings.output.join was 'none', is 'input'"),
        ({"settings": settings_of(flow={"batch_rows_max": 3})}, "settings.batch was"),
        ({"settings": settings_of(tasks={"task_bytes": 7})}, "settings.tasks was"),
    ],
)
def test_another_run_is_not_resumed(shared, stores, changed, what):
    put(stores, {"a.csv": rows(40)})
    with pytest.raises(BrokenError):
        transform(stores, predictor=Breaking(shared, at=3))
    with pytest.raises(ResumeRefusedError, match=what):
        transform(stores, predictor=shared, if_exists="resume", **changed)


def test_a_finished_run_resumes_to_its_report_without_a_call(shared, stores):
    put(stores, {"a.csv": rows(9)})
    report = transform(stores, predictor=shared)
    put(stores, {"b.csv": rows(9)})
    predictor = Breaking(shared, at=0)
    assert transform(stores, predictor=predictor, if_exists="resume") == report
    assert predictor.asked == 0


def test_what_is_not_there_is_begun_by_a_resumption(shared, stores):
    put(stores, {"a.csv": rows(9)})
    assert transform(stores, predictor=shared, if_exists="resume").rows_out == 9


def test_a_run_with_looser_bounds_on_failures_goes_on(shared, stores):
    """What was delivered when it stopped is there once."""
    put(stores, {"a.csv": rows(6) + b"x,1\ny,1\n" + rows(6, 6), "b.csv": rows(9)})
    transform(stores, predictor=shared, destination="memory://whole/")
    for checkpoint_s in (0.0, 1e9):
        used = settings_of(failures={"failed_rows_max": 1}, tasks={"checkpoint_s": checkpoint_s})
        with pytest.raises(TooManyFailuresError, match="2 records failed, and failed_rows_max is 1"):
            transform(stores, predictor=shared, settings=used, if_exists="overwrite")
        with pytest.raises(TooManyFailuresError):
            transform(stores, predictor=shared, settings=used, if_exists="resume")
        used = settings_of(failures={"failed_rows_max": 2})
        report = transform(stores, predictor=shared, settings=used, if_exists="resume")
        assert outputs(stores) == outputs(stores, "memory://whole/")
        assert (report.records_in, report.rows_out, report.rows_failed) == (23, 21, 2)


def test_failures_before_a_checkpoint_count(shared, stores):
    """The bound is on the run, however many processes it takes."""
    put(stores, {"a.csv": b"x,1\n" + rows(20) + b"y,1\nz,1\n" + rows(20)})
    used = settings_of(failures={"failed_rows_max": 2}, tasks=TINY)
    with pytest.raises(BrokenError):
        transform(stores, predictor=Breaking(shared, at=4), settings=used)
    with pytest.raises(TooManyFailuresError, match="3 records failed"):
        transform(stores, predictor=shared, settings=used, if_exists="resume")


def test_failures_are_counted_once_however_often_it_is_resumed(shared, stores):
    put(stores, {"a.csv": b"x,1\ny,1\n" + rows(40)})
    used = settings_of(failures={"failed_rows_max": 2}, tasks=TINY)
    predictor = Breaking(shared, at=3)
    for _ in range(3):
        with pytest.raises(BrokenError):
            transform(stores, predictor=predictor, settings=used, if_exists="resume")
        predictor.at = predictor.asked + 2
    assert transform(stores, predictor=shared, settings=used, if_exists="resume").rows_failed == 2


# An output that is there


def test_an_output_that_is_there_is_refused_then_overwritten(shared, stores):
    put(stores, {"a.csv": rows(9), "b.csv": b"x,1\n" + rows(1)})
    transform(stores, predictor=shared)
    with pytest.raises(OutputExistsError):
        transform(stores, predictor=shared)
    stores.for_uri(IN).delete(IN + "b.csv")
    put(stores, {"a.csv": rows(2)})
    report = transform(stores, predictor=shared, if_exists="overwrite")
    assert outputs(stores) == {"a.csv.out": doubled(2)}
    assert report.objects == 1


def test_overwriting_deletes_only_what_a_transform_wrote(shared, stores):
    put(stores, {"a.csv": b"x,1\n" + rows(2)})
    put(stores, {"notes.txt": b"mine", "a.csv.out.bak": b"mine", "b.csv.out": b"mine"}, OUT)
    transform(stores, predictor=shared)
    transform(stores, predictor=shared, if_exists="overwrite")
    found = outputs(stores)
    assert [found[n] for n in ("notes.txt", "a.csv.out.bak", "b.csv.out")] == [b"mine"] * 3
    assert found["a.csv.out"] == doubled(2)


@pytest.mark.parametrize(("source", "data"), [("memory://mistyped/", b"1,2\n"), ("memory://in/", b"1,2,3\n")])
def test_what_cannot_be_run_does_not_cost_the_output_that_is_there(shared, stores, source, data):
    put(stores, {"a.csv": rows(9)})
    transform(stores, predictor=shared)
    before = outputs(stores), ledger_names(stores)
    put(stores, {"a.csv": data})
    with pytest.raises((EmptySourceError, ModelInputError)):
        transform(stores, predictor=shared, source=source, if_exists="overwrite")
    assert (outputs(stores), ledger_names(stores)) == before


def test_a_model_that_fits_nothing_leaves_nothing(shared, stores):
    put(stores, {"a.csv": b"1,2,3\n"})
    with pytest.raises(ModelInputError, match="takes 2 numbers"):
        transform(stores, predictor=shared)
    assert list(stores.for_uri(OUT).list(OUT)) == []
    put(stores, {"a.csv": rows(1)})
    assert transform(stores, predictor=shared).rows_out == 1


def test_overwriting_that_is_killed_leaves_nothing_that_a_new_run_would_believe(shared):
    plain = Stores()
    put(plain, {"a.csv": rows(9), "b.csv": b"x,1\n"})
    for at in range(1, 40):
        inner = MemoryStore()
        whole = WithStore(plain, "memory://out/", inner)
        transform(whole, predictor=shared)
        old = outputs(whole)
        other = Stores()
        put(other, {"a.csv": rows(2)})
        flaky = FailsOnce(inner, at=at, done=True)
        used = WithStore(other, "memory://out/", flaky)
        with contextlib.suppress(UnavailableError):
            transform(used, predictor=shared, if_exists="overwrite")
        again = WithStore(other, "memory://out/", inner)
        # The old run is whole, or refused; or there is none, or the new one.
        with contextlib.suppress(ResumeRefusedError):
            transform(again, predictor=shared, if_exists="resume")
            assert outputs(again) in (old, {"a.csv.out": doubled(2)}), at
        report = transform(again, predictor=shared, if_exists="overwrite")
        assert outputs(again) == {"a.csv.out": doubled(2)}, at
        assert (report.records_in, report.tasks) == (2, 1), at


def test_a_streams_output_is_not_touched(shared, stores):
    put(stores, {"a.csv": rows(9)})
    put(stores, {"_headrace/run.json": b'{"v": 1}', "part-00000.csv": b"1\n"}, OUT)
    for if_exists in ("refuse", "resume", "overwrite"):
        with pytest.raises(LedgerError, match="output of headrace stream"):
            transform(stores, predictor=shared, if_exists=if_exists)
    assert outputs(stores) == {"part-00000.csv": b"1\n"}


@pytest.mark.parametrize("at", range(0, 24, 2))
def test_two_runs_on_one_destination_harm_nothing(shared, undisturbed, monkeypatch, at):
    """The other one is begun, and finished, while the first is at a batch."""
    cut(monkeypatch)
    stores = Stores()
    put(stores, MIXED)
    with engine() as second:
        predictor = Breaking(
            shared,
            at=at,
            action=lambda: transform(stores, predictor=second, settings=mixed(), if_exists="resume"),
        )
        with contextlib.suppress(HeadraceError):
            transform(stores, predictor=predictor, settings=mixed())
    assert outputs(stores) == undisturbed[0]
    assert same_counts(
        transform(stores, predictor=shared, settings=mixed(), if_exists="resume"), undisturbed[1]
    )


@pytest.mark.parametrize("at", range(0, 24, 2))
def test_what_another_process_has_done_is_taken_as_it_stands(shared, undisturbed, monkeypatch, at):
    """The other one is drained in its middle, while the first is at a batch."""
    cut(monkeypatch)
    stores = Stores()
    put(stores, MIXED)
    with engine() as second:
        inner = Breaking(second, at=12)
        other = made(stores, predictor=inner, settings=mixed(), if_exists="resume")
        inner.action = other.drain
        predictor = Breaking(shared, at=at, action=other.execute)
        report = transform(stores, predictor=predictor, settings=mixed())
    assert outputs(stores) == undisturbed[0]
    assert same_counts(report, undisturbed[1])


@pytest.mark.parametrize("local", [False, True])
def test_two_runs_that_race_harm_nothing(undisturbed, monkeypatch, tmp_path, local):
    """One of them may be told that the other took something from under it; what is published is whole."""
    cut(monkeypatch)
    monkeypatch.setattr("headrace.transforms.spool.HELD_BYTES_MAX", 20)
    for turn in range(4):
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
        assert outputs(stores, out) == undisturbed[0]
        assert same_counts(report, undisturbed[1])


# On a disk, with outputs too large to be held


@pytest.mark.parametrize("checkpoint_s", [0.0, 1e9])
def test_large_outputs_on_a_disk_survive_being_broken_anywhere(
    shared, undisturbed, monkeypatch, tmp_path, checkpoint_s
):
    cut(monkeypatch)
    monkeypatch.setattr("headrace.transforms.spool.HELD_BYTES_MAX", 20)
    for name, data in MIXED.items():
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    source, used = f"{tmp_path}/in/", mixed(checkpoint_s=checkpoint_s)
    for at in range(0, undisturbed[2], 4):
        stores, out = Stores(), f"{tmp_path}/out-{at}/"
        with pytest.raises(BrokenError):
            transform(
                stores, predictor=Breaking(shared, at=at), source=source, destination=out, settings=used
            )
        report = transform(
            stores, predictor=shared, source=source, destination=out, settings=used, if_exists="resume"
        )
        found = {n: d.replace(source.encode(), IN.encode()) for n, d in outputs(stores, out).items()}
        assert found == undisturbed[0], at
        assert same_counts(report, undisturbed[1])
        assert not list((tmp_path / f"out-{at}" / "_headrace" / "drafts").iterdir())


def test_killed_between_publishing_and_committing_a_large_output_goes_on(shared, monkeypatch, tmp_path):
    monkeypatch.setattr("headrace.transforms.spool.HELD_BYTES_MAX", 20)
    (tmp_path / "a.csv").write_bytes(rows(40) + b"x,1\n" * 5)
    used = settings_of(tasks=TINY)
    commit = TransformLedger.commit_task
    monkeypatch.setattr(TransformLedger, "commit_task", lambda *_: (_ for _ in ()).throw(BrokenError))
    source, out = f"{tmp_path}/a.csv", f"{tmp_path}/out/"
    with pytest.raises(BrokenError):
        transform(Stores(), predictor=shared, source=source, destination=out, settings=used)
    assert (tmp_path / "out" / "a.csv.out").read_bytes() == doubled(40)
    monkeypatch.setattr(TransformLedger, "commit_task", commit)
    predictor = Breaking(shared, at=-1)
    transform(
        Stores(), predictor=predictor, source=source, destination=out, settings=used, if_exists="resume"
    )
    assert (tmp_path / "out" / "a.csv.out").read_bytes() == doubled(40)
    assert predictor.asked <= 1


# What failures cost


def test_on_error_object_withholds_the_objects_output(shared, stores):
    put(
        stores,
        {"a.csv": rows(3) + b"x,1\n" + rows(3), "b.csv": rows(2), "c.csv.gz": gzip.compress(rows(2))[:-3]},
    )
    report = transform(stores, predictor=shared, settings=settings_of(failures={"on_error": "object"}))
    found = outputs(stores)
    assert set(found) == {"a.csv.out.failed", "b.csv.out", "c.csv.gz.out.failed"}
    assert found["b.csv.out"] == doubled(2)
    assert [line["raw"] for line in failed_lines(found["a.csv.out.failed"])] == ["x,1"]
    assert (report.status, report.exit_code, report.objects_withheld) == ("failed", 1, 2)
    assert report.records_in == report.rows_out + report.rows_failed + report.rows_withheld
    assert (report.rows_out, report.rows_failed, report.rows_withheld) == (2, 1, 8)
    assert report.out_bytes == len(doubled(2))
    assert all(entry["withheld"] for entry in report.failed_objects)
    assert (
        transform(
            stores,
            predictor=shared,
            settings=settings_of(failures={"on_error": "object"}),
            if_exists="resume",
        )
        == report
    )


def test_on_error_object_skips_the_rest_of_a_hopeless_object(stores):
    put(stores, {"a.csv": b"-1,1\n" + rows(400), "b.csv": rows(4)})
    model = Doubler()
    used = settings_of(
        failures={"on_error": "object"},
        flow={"range_bytes": 64, "prefetch_bytes_max": 64, "window_bytes_max": 64},
    )
    with engine(model, in_flight_max=1) as predictor:
        report = transform(stores, predictor=predictor, settings=used)
    assert report.records_in < 300
    assert outputs(stores)["b.csv.out"] == doubled(4)
    assert set(outputs(stores)) == {"a.csv.out.failed", "b.csv.out"}


@settings(deadline=None, max_examples=40)
@given(TEXTS, st.integers(5, 40), st.randoms())
def test_on_error_object_withholds_an_object_in_ranges(shared, text, task_bytes, random):
    stores = Stores()
    put(stores, {"0.csv": b"1,2\n", "a.csv": text})
    options = {"read": {"record_bytes_max": 50}, "failures": {"on_error": "object"}}
    with pytest.MonkeyPatch.context() as patch:
        cut(patch)
        whole = transform(
            stores, predictor=shared, settings=settings_of(**options), destination="memory://whole/"
        )
        run = made(
            stores, predictor=shared, settings=settings_of(**options, tasks={"task_bytes": task_bytes})
        )
        shuffle(run, random)
        report = run.execute()
    assert (report.status, report.objects_withheld) == (whole.status, whole.objects_withheld)
    assert set(outputs(stores)) == set(outputs(stores, "memory://whole/"))
    if not whole.objects_withheld:
        assert outputs(stores) == outputs(stores, "memory://whole/")
    # Skipped or not, what is told of a record is true.
    for line in failed_lines(outputs(stores).get("a.csv.out.failed", b"")):
        if line["kind"] != "object":
            assert text.decode()[line["byte"] :].startswith(line["raw"])
            assert text[: line["byte"]].count(b"\n") + 1 == line["line"]


def test_on_error_job_stops_the_run(shared, stores):
    put(stores, {"a.csv": rows(8), "b.csv": b"x,1\n" + rows(8)})
    used = settings_of(failures={"on_error": "job"})
    for if_exists in ("refuse", "resume"):
        with pytest.raises(TooManyFailuresError, match=r"b\.csv: a record failed"):
            transform(stores, predictor=shared, settings=used, if_exists=if_exists)
    assert "_report.json" not in [i.uri for i in stores.for_uri(OUT).list(OUT)]


@pytest.mark.parametrize(("share", "stops"), [(0.0, True), (0.24, True), (0.25, False), (1.0, False)])
def test_a_share_of_failed_records_is_bounded_at_the_end(shared, stores, share, stops):
    put(stores, {"a.csv": b"x,1\n" + rows(3)})
    used = settings_of(failures={"failed_share_max": share})
    if not stops:
        assert transform(stores, predictor=shared, settings=used).exit_code == 3
        return
    with pytest.raises(TooManyFailuresError, match="1 of 4 records failed"):
        transform(stores, predictor=shared, settings=used)
    assert "report.json" not in ledger_names(stores)
    used = settings_of(failures={"failed_share_max": 0.5})
    predictor = Breaking(shared, at=0)
    assert transform(stores, predictor=predictor, settings=used, if_exists="resume").rows_failed == 1


def test_a_share_of_failed_records_is_looked_at_once_there_are_enough(shared, stores, monkeypatch):
    monkeypatch.setattr("headrace.transforms.run.SHARE_ROWS_MIN", 12)
    put(stores, {"a.csv": b"x,1\n" + rows(7) + b"y,1\n" * 4 + rows(400)})
    predictor = Breaking(shared, at=-1)
    bounded = settings_of(failures={"failed_share_max": 0.2}, flow={"window_bytes_max": 1})
    with pytest.raises(TooManyFailuresError, match="5 of 12 records"):
        transform(stores, predictor=predictor, settings=bounded)
    assert predictor.asked < 50


def test_an_object_that_is_gone_before_it_is_read_costs_itself(shared, monkeypatch, tmp_path):
    """Also one that is read in ranges."""
    cut(monkeypatch)
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.csv").write_bytes(rows(20))
    out = f"{tmp_path}/out/"
    stores = Stores()
    used = settings_of(tasks={"task_bytes": 30}, flow={"prefetch_bytes_max": 1, "window_bytes_max": 1})
    with engine(in_flight_max=1) as predictor:
        breaking = Breaking(predictor, at=0, action=(tmp_path / "in" / "b.csv").unlink)
        report = transform(
            stores, predictor=breaking, source=f"{tmp_path}/in/", destination=out, settings=used
        )
    found = outputs(stores, out)
    assert (found["a.csv.out"], found["c.csv.out"]) == (doubled(20), doubled(20))
    assert report.exit_code == 1
    assert {line["kind"] for line in failed_lines(found["b.csv.out.failed"])} == {"object"}


def test_an_object_that_breaks_within_its_ranges_keeps_what_was_read(shared, monkeypatch, stores):
    """Behind a range without an end nothing can be proved, and nothing is done again."""
    cut(monkeypatch)
    put(stores, {"a.csv": rows(60)})
    used = settings_of(tasks={"task_bytes": 40}, flow={"prefetch_bytes_max": 1, "window_bytes_max": 1})
    with engine(in_flight_max=1) as predictor:
        breaking = Breaking(predictor, at=7, action=lambda: put(stores, {"a.csv": rows(61)}))
        report = transform(stores, predictor=breaking, settings=used)
    found = outputs(stores)["a.csv.out"]
    assert len(found) > 10
    assert doubled(60).startswith(found)
    assert report.objects_broken == 1
    assert report.records_in == found.count(b"\n")
