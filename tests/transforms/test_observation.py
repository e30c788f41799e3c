import time

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import FailureKind
from headrace.core.errors import DataError
from headrace.transforms.observation import EXCERPT_BYTES_MAX, FAILURES_MAX, OUTPUTS_MAX, Observation
from transforms.observing import failure, scored


def _numbers(*values: float) -> dict:
    return {"y": np.array(values, np.float32)}


def test_records_failures_and_values_are_counted():
    seen = Observation(100.0)
    seen.batch(scored(_numbers(1, 2)), 100.01)
    seen.batch(scored(_numbers(3), [failure(7)]), 100.5)
    assert seen.records == 4
    assert seen.timeline.records == [2, 0, 0, 0, 0, 0, 0, 0, 2]
    assert sum(seen.timeline.failures) == 1
    (series,) = seen.series
    assert (series.label, series.kind, series.rows) == ("y", "float", 3)
    assert series.distribution.distinct == {1.0: 1, 2.0: 1, 3.0: 1}


def test_the_run_begins_when_it_is_told_or_with_the_first_batch():
    seen = Observation()
    seen.begin(5.0)
    seen.begin(6.0)
    seen.batch(scored(_numbers(1)), 7.0)
    assert (seen.began_s, seen.timeline.last_s) == (5.0, 2.0)
    late = Observation()
    late.batch(scored(_numbers(1)), 7.0)
    assert (late.began_s, late.timeline.last_s) == (7.0, 0.0)


def test_a_batch_of_failures_alone():
    """Then there are no outputs at all."""
    seen = Observation(0.0)
    seen.batch(scored({}, [failure(0), failure(1)]), 1.0)
    assert (seen.records, sum(seen.timeline.failures), seen.series) == (2, 2, [])


def test_broken_objects_are_listed_and_are_no_records():
    seen = Observation(0.0)
    seen.batch(scored(_numbers(1), [failure(1), failure(2, "cut off", b"", kind=FailureKind.OBJECT)]), 1.0)
    assert (seen.records, sum(seen.timeline.failures)) == (2, 1)
    assert [f.kind for f in seen.failures] == ["decode", "object"]


def test_failures_are_kept_with_their_place_and_an_excerpt():
    seen = Observation(0.0)
    raw = b"\xff" + b"x" * 500
    seen.batch(
        scored({}, [failure(4, "why\udcff" * 400, raw, object="s3://b/\udcff.tar", member="m\udcff.csv")]),
        2.0,
    )
    (kept,) = seen.failures
    assert (kept.record, kept.line, kept.byte, kept.at_s) == (4, 5, 40, 2.0)
    assert kept.object == "s3://b/\\udcff.tar"
    assert kept.member == "m\\udcff.csv"
    assert kept.raw == "\ufffd" + "x" * (EXCERPT_BYTES_MAX - 1)
    assert kept.cut
    assert len(kept.why) < 5000
    orjson.dumps(seen.to_json())


def test_only_the_first_failures_are_kept():
    seen = Observation(0.0)
    for batch in range(3):
        seen.batch(scored({}, [failure(i + 100 * batch) for i in range(100)]), float(batch))
    assert [f.record for f in seen.failures] == list(range(FAILURES_MAX))
    assert seen.records == 300


def test_outputs_may_change_from_batch_to_batch():
    seen = Observation(0.0)
    seen.batch(scored({"y": np.zeros(2, np.float32)}), 0.0)
    seen.batch(scored({"y": np.zeros(2, np.float64)}), 0.0)
    seen.batch(scored({"y": np.zeros(2, np.int64)}), 0.0)
    seen.batch(scored({"y": np.zeros((2, 3))}), 0.0)
    seen.batch(scored({"y": np.array(["a", "b"], object)}), 0.0)
    seen.batch(scored({"y": np.zeros((2, 0)), "z": np.zeros(2, np.complex64)}), 0.0)
    found = {(name, kind, width): series[0].rows for (name, kind, width), series in seen.outputs().items()}
    assert found == {("y", "float", 1): 4, ("y", "integer", 1): 2, ("y", "float", 3): 2, ("y", "text", 1): 2}
    assert seen.unseen == {"y", "z"}


def test_more_outputs_than_there_is_room_for_are_said():
    seen = Observation(0.0)
    seen.batch(scored({f"o{i:02}": np.zeros(2) for i in range(OUTPUTS_MAX + 2)}), 0.0)
    assert len(seen.series) == OUTPUTS_MAX
    assert seen.unseen == {f"o{OUTPUTS_MAX}", f"o{OUTPUTS_MAX + 1}"}


def test_cleared_it_has_seen_nothing_but_knows_when_the_run_began():
    seen = Observation(3.0)
    seen.batch(scored(_numbers(1), [failure()]), 4.0)
    seen.clear()
    assert seen.to_json() == Observation(3.0).to_json()
    seen.batch(scored(_numbers(1)), 5.0)
    assert seen.timeline.last_s == 2.0


_BATCHES = st.lists(
    st.tuples(
        st.floats(0, 1000),
        st.lists(st.floats(width=32), max_size=5),
        st.lists(st.sampled_from("abc"), max_size=5),
        st.integers(0, 3),
    ),
    max_size=12,
)


def _saw(batches) -> Observation:
    seen = Observation(0.0)
    for at_s, numbers, texts, failed in batches:
        failures = [failure(i) for i in range(failed)]
        seen.batch(scored({"y": np.array(numbers, np.float32)} if numbers else {}, failures), at_s)
        seen.batch(scored({"t": np.array(texts, object)} if texts else {}), at_s)
    return seen


def _told(seen: Observation) -> dict:
    """All but what is rounded by order, and the order in which outputs came."""
    found = orjson.loads(orjson.dumps(seen.to_json()))
    for output in found["outputs"]:
        for series in output["series"]:
            del series["distribution"]["mean"]
    found["outputs"].sort(key=lambda output: output["name"])
    return found


@given(_BATCHES, _BATCHES, _BATCHES)
def test_observations_add_up(one, two, three):
    a, b, c = _saw(one), _saw(two), _saw(three)
    together = _told(a.merged(b).merged(c))
    assert together == _told(c.merged(a.merged(b))) == _told(b.merged(c).merged(a))
    whole = _told(_saw(sorted([*one, *two, *three], key=lambda batch: batch[0])))
    assert {**together, "failures": 0} == {**whole, "failures": 0}
    assert len(together["failures"]) == len(whole["failures"])


@given(_BATCHES)
def test_it_is_read_back_from_json(batches):
    seen = _saw(batches)
    again = Observation.from_json(orjson.loads(orjson.dumps(seen.to_json())))
    assert again.to_json() == seen.to_json()
    again.batch(scored(_numbers(1)), 2000.0)
    assert again.records == seen.records + 1


def test_merging_changes_neither():
    a, b = _saw([(1.0, [1.0], ["a"], 2)]), _saw([(900.0, [2.0], [], 1)])
    before = a.to_json(), b.to_json()
    a.merged(b)
    assert (a.to_json(), b.to_json()) == before


def test_the_first_failures_of_all_are_kept():
    a, b = Observation(0.0), Observation(0.0)
    for batch in range(FAILURES_MAX):
        a.batch(scored({}, [failure(batch, object="a")]), 2.0 * batch)
        b.batch(scored({}, [failure(batch, object="b")]), 2.0 * batch + 1)
    kept = a.merged(b).failures
    assert [f.object for f in kept] == ["a", "b"] * (FAILURES_MAX // 2)


def test_another_versions_is_refused():
    with pytest.raises(DataError, match="version 99"):
        Observation.from_json({**Observation().to_json(), "v": 99})


def test_looking_costs_little_beside_a_batch_of_4096_rows():
    """A million rows a second are 4 ms a batch; about 10 us are taken. The bound leaves room for slow machines."""
    seen = Observation(0.0)
    rng = np.random.default_rng(3)
    batch = scored({"label": rng.integers(0, 2, 4096), "scores": rng.random((4096, 2)).astype(np.float32)})
    spent_s = []
    for turn in range(400):
        began_s = time.process_time()
        seen.batch(batch, turn * 0.004)
        spent_s.append(time.process_time() - began_s)
    assert sum(spent_s) / len(spent_s) < 200e-6
    assert seen.records == 400 * 4096
