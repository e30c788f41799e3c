import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import FailureKind
from headrace.core.errors import DataError
from headrace.reports.distribution import SAMPLE_VALUES_MAX, Distribution
from headrace.reports.observation import EXCERPT_BYTES_MAX, FAILURES_MAX, OUTPUTS_MAX, RunObservation
from reports.observation_support import failure, scored


def _numbers(*values: float) -> dict:
    return {"y": np.array(values, np.float32)}


def test_batches_are_counted():
    seen = RunObservation(100.0)
    seen.add_batch(scored(_numbers(1, 2)), 100.01)
    seen.add_batch(scored(_numbers(3), [failure(7)]), 100.5)
    assert seen.records == 4
    assert seen.timeline.records == [2, 0, 0, 0, 0, 0, 0, 0, 2]
    assert sum(seen.timeline.failures) == 1
    (series,) = seen.series
    assert (series.label, series.kind, series.rows) == ("y", "float", 3)
    assert series.distribution.distinct == {1.0: 1, 2.0: 1, 3.0: 1}


def test_start_is_set_by_begin_or_the_first_batch():
    seen = RunObservation()
    seen.begin(5.0)
    seen.begin(6.0)
    seen.add_batch(scored(_numbers(1)), 7.0)
    assert (seen.began_s, seen.timeline.last_s) == (5.0, 2.0)
    late = RunObservation()
    late.add_batch(scored(_numbers(1)), 7.0)
    assert (late.began_s, late.timeline.last_s) == (7.0, 0.0)


def test_batch_without_outputs_is_counted():
    seen = RunObservation(0.0)
    seen.add_batch(scored({}, [failure(0), failure(1)]), 1.0)
    assert (seen.records, sum(seen.timeline.failures), seen.series) == (2, 2, [])


def test_broken_objects_are_listed_but_not_records():
    seen = RunObservation(0.0)
    seen.add_batch(
        scored(_numbers(1), [failure(1), failure(2, "cut off", b"", kind=FailureKind.OBJECT)]), 1.0
    )
    assert (seen.records, sum(seen.timeline.failures)) == (2, 1)
    assert [f.kind for f in seen.failures] == ["decode", "object"]


def test_failures_have_position_and_excerpt():
    seen = RunObservation(0.0)
    raw = b"\xff" + b"x" * 500
    seen.add_batch(
        scored({}, [failure(4, "why\udcff" * 400, raw, object="s3://b/\udcff.tar", member="m\udcff.csv")]),
        2.0,
    )
    (retained,) = seen.failures
    assert (retained.record, retained.line, retained.byte, retained.at_s) == (4, 5, 40, 2.0)
    assert retained.object == "s3://b/\\udcff.tar"
    assert retained.member == "m\\udcff.csv"
    assert retained.raw == "\ufffd" + "x" * (EXCERPT_BYTES_MAX - 1)
    assert retained.cut
    assert len(retained.why) < 5000
    orjson.dumps(seen.to_json())


def test_first_failures_are_retained():
    seen = RunObservation(0.0)
    for batch in range(3):
        seen.add_batch(scored({}, [failure(i + 100 * batch) for i in range(100)]), float(batch))
    assert [f.record for f in seen.failures] == list(range(FAILURES_MAX))
    assert seen.records == 300


def test_outputs_can_change_between_batches():
    seen = RunObservation(0.0)
    seen.add_batch(scored({"y": np.zeros(2, np.float32)}), 0.0)
    seen.add_batch(scored({"y": np.zeros(2, np.float64)}), 0.0)
    seen.add_batch(scored({"y": np.zeros(2, np.int64)}), 0.0)
    seen.add_batch(scored({"y": np.zeros((2, 3))}), 0.0)
    seen.add_batch(scored({"y": np.array(["a", "b"], object)}), 0.0)
    seen.add_batch(scored({"y": np.zeros((2, 0)), "z": np.zeros(2, np.complex64)}), 0.0)
    found = {(name, kind, width): series[0].rows for (name, kind, width), series in seen.outputs().items()}
    assert found == {("y", "float", 1): 4, ("y", "integer", 1): 2, ("y", "float", 3): 2, ("y", "text", 1): 2}
    assert seen.unseen == {"y", "z"}


def test_outputs_beyond_the_limit_are_named():
    seen = RunObservation(0.0)
    seen.add_batch(scored({f"o{i:02}": np.zeros(2) for i in range(OUTPUTS_MAX + 2)}), 0.0)
    assert len(seen.series) == OUTPUTS_MAX
    assert seen.unseen == {f"o{OUTPUTS_MAX}", f"o{OUTPUTS_MAX + 1}"}


def test_clear_keeps_the_start_time():
    seen = RunObservation(3.0)
    seen.add_batch(scored(_numbers(1), [failure()]), 4.0)
    seen.clear()
    assert seen.to_json() == RunObservation(3.0).to_json()
    seen.add_batch(scored(_numbers(1)), 5.0)
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


def _observe(batches) -> RunObservation:
    seen = RunObservation(0.0)
    for at_s, numbers, texts, failed in batches:
        failures = [failure(i) for i in range(failed)]
        seen.add_batch(scored({"y": np.array(numbers, np.float32)} if numbers else {}, failures), at_s)
        seen.add_batch(scored({"t": np.array(texts, object)} if texts else {}), at_s)
    return seen


def _comparable(seen: RunObservation) -> dict:
    """Return all but rounded values and the order of outputs."""
    found = orjson.loads(orjson.dumps(seen.to_json()))
    for output in found["outputs"]:
        for series in output["series"]:
            del series["distribution"]["mean"]
    found["outputs"].sort(key=lambda output: output["name"])
    return found


@given(_BATCHES, _BATCHES, _BATCHES)
def test_merged_observations_add_up(one, two, three):
    a, b, c = _observe(one), _observe(two), _observe(three)
    together = _comparable(a.merged(b).merged(c))
    assert together == _comparable(c.merged(a.merged(b))) == _comparable(b.merged(c).merged(a))
    whole = _comparable(_observe(sorted([*one, *two, *three], key=lambda batch: batch[0])))
    assert {**together, "failures": 0} == {**whole, "failures": 0}
    assert len(together["failures"]) == len(whole["failures"])


@given(_BATCHES)
def test_observation_round_trips_through_json(batches):
    seen = _observe(batches)
    again = RunObservation.from_json(orjson.loads(orjson.dumps(seen.to_json())))
    assert again.to_json() == seen.to_json()
    again.add_batch(scored(_numbers(1)), 2000.0)
    assert again.records == seen.records + 1


def test_merging_does_not_modify_the_observations():
    a, b = _observe([(1.0, [1.0], ["a"], 2)]), _observe([(900.0, [2.0], [], 1)])
    before = a.to_json(), b.to_json()
    a.merged(b)
    assert (a.to_json(), b.to_json()) == before


def test_merging_retains_the_earliest_failures():
    a, b = RunObservation(0.0), RunObservation(0.0)
    for batch in range(FAILURES_MAX):
        a.add_batch(scored({}, [failure(batch, object="a")]), 2.0 * batch)
        b.add_batch(scored({}, [failure(batch, object="b")]), 2.0 * batch + 1)
    retained = a.merged(b).failures
    assert [f.object for f in retained] == ["a", "b"] * (FAILURES_MAX // 2)


def test_observation_of_another_version_is_refused():
    with pytest.raises(DataError, match="version 99"):
        RunObservation.from_json({**RunObservation().to_json(), "v": 99})


def test_observing_large_batches_counts_few_values_rarely(monkeypatch):
    """The cost of a batch does not depend on its size, and many batches are counted together."""
    counted: list[int] = []
    real = Distribution.add

    def add(self, values) -> None:
        counted.append(len(values))
        real(self, values)

    monkeypatch.setattr(Distribution, "add", add)
    seen = RunObservation(0.0)
    rng = np.random.default_rng(3)
    batch = scored({"label": rng.integers(0, 2, 4096), "scores": rng.random((4096, 2)).astype(np.float32)})
    for turn in range(400):
        seen.add_batch(batch, turn * 0.004)
    assert sum(series.rows for series in seen.series) == 3 * 400 * 4096
    assert sum(counted) <= 400 * 2 * SAMPLE_VALUES_MAX
    assert len(counted) < 400 / 6
    assert seen.records == 400 * 4096
