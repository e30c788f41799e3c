from headrace.core.statistics import Counted, Histogram


def test_a_value_is_counted_in_the_first_class_that_holds_it():
    counted = Counted((1, 2, 4))
    for value in (1, 2, 3, 4, 5, 0.5):
        counted.add(value)
    assert counted.snapshot() == Histogram((1, 2, 4), (2, 1, 2, 1), 15.5)


def test_a_snapshot_does_not_change_afterwards():
    counted = Counted((1,))
    before = counted.snapshot()
    counted.add(9)
    assert before == Histogram.empty((1,))
