from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.reports.observation import POINTS_MAX, STEP_MIN_S, Timeline

_EVENTS = st.lists(
    st.tuples(st.floats(0, 1e6), st.integers(0, 10_000), st.integers(0, 100)), min_size=1, max_size=40
)


def _of(events) -> Timeline:
    timeline = Timeline()
    for at_s, records, failures in events:
        timeline.add(at_s, records=records, failures=failures)
    return timeline


def test_counts_are_by_time():
    timeline = _of([(0.0, 10, 1), (0.06, 5, 0), (0.0626, 7, 2), (0.5, 1, 0)])
    assert timeline.step_s == STEP_MIN_S
    assert timeline.records == [15, 7, 0, 0, 0, 0, 0, 0, 1]
    assert timeline.failures == [1, 2, 0, 0, 0, 0, 0, 0, 0]
    assert timeline.batches == [2, 1, 0, 0, 0, 0, 0, 0, 1]
    assert timeline.last_s == 0.5


def test_events_before_the_start_count_for_the_first_point():
    """A worker may read its clock just before the run does."""
    assert _of([(-3.0, 4, 0)]).records == [4]


def test_full_timeline_merges_neighbours():
    timeline = _of([(i * STEP_MIN_S, 1, 0) for i in range(POINTS_MAX)])
    assert timeline.records == [1] * POINTS_MAX
    timeline.add(POINTS_MAX * STEP_MIN_S, records=1, failures=0)
    assert timeline.step_s == 2 * STEP_MIN_S
    assert timeline.records == [2] * (POINTS_MAX // 2) + [1]


@given(_EVENTS)
def test_nothing_is_lost_in_bounded_memory(events):
    timeline = _of(events)
    assert len(timeline.records) <= POINTS_MAX
    assert len(timeline.records) == len(timeline.failures) == len(timeline.batches)
    assert sum(timeline.records) == sum(e[1] for e in events)
    assert sum(timeline.failures) == sum(e[2] for e in events)
    assert sum(timeline.batches) == len(events)
    assert timeline.last_s == max(e[0] for e in events)


@given(_EVENTS, st.randoms(use_true_random=False), st.integers(0, 40))
def test_counts_do_not_depend_on_order_or_merging(events, random, cut):
    shuffled = list(events)
    random.shuffle(shuffled)
    parts = [_of(part) for part in (shuffled[:cut], shuffled[cut:])]
    together = Timeline()
    for part in parts:
        together.add_all(part)
    assert together == _of(events)


@given(_EVENTS, st.integers(1, 7))
def test_folded_points_are_sums(events, by):
    timeline = _of(events)
    folded = timeline.folded(by)
    assert folded.step_s == by * timeline.step_s
    assert sum(folded.records) == sum(timeline.records)
    assert folded.records[0] == sum(timeline.records[:by])
    assert len(folded.records) == -(-len(timeline.records) // by)


@given(_EVENTS)
def test_timeline_round_trips_through_json(events):
    timeline = _of(events)
    assert Timeline.from_json(timeline.to_json()) == timeline


@for_each("empty_first", [True, False])
def test_empty_timeline_adds_nothing(empty_first):
    timeline, empty = _of([(1000.0, 3, 1)]), Timeline()
    if empty_first:
        empty.add_all(timeline)
        assert empty == timeline
    else:
        before = timeline.to_json()
        timeline.add_all(empty)
        assert timeline.to_json() == before
