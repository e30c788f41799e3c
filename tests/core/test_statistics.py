from headrace.core.statistics import Histogram, HistogramCounter


def test_value_counts_in_the_first_bucket_that_holds_it():
    counter = HistogramCounter((1, 2, 4))
    for value in (1, 2, 3, 4, 5, 0.5):
        counter.add(value)
    assert counter.snapshot() == Histogram((1, 2, 4), (2, 1, 2, 1), 15.5)


def test_snapshot_is_immutable():
    counter = HistogramCounter((1,))
    before = counter.snapshot()
    counter.add(9)
    assert before == Histogram.empty((1,))
