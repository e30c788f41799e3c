"""The first requests of a run: a model that fails every row alike costs few calls."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from engine import bug_models as models
from engine.support import WAIT_S, request, rows, running, submit_and_wait
from headrace.batching.bisect import sample_rows
from headrace.core import Model
from headrace.core.errors import BrokenModelError
from headrace.core.model_traceback import ModelTraceback
from headrace.engine.broken_model import REQUESTS_MAX, SAMPLED_ROWS, BrokenModelCheck

FIRST = ModelTraceback("ValueError", file="m.py", line=3)


@given(st.integers(0, 2000), st.integers(1, 20))
def test_sampled_rows_are_different_and_spread(count, samples):
    found = sample_rows(count, samples)
    assert len(found) == len(set(found)) == min(count, samples)
    assert all(0 <= row < count for row in found)
    if count > 1 and samples > 1:
        assert (found[0], found[-1]) == (0, count - 1)


def test_bug_costs_few_calls():
    """Today's number was 127 calls for each request of 64 rows."""
    with running(models.Bug(), finds_broken_model=True) as engine:
        with pytest.raises(BrokenModelError, match=r"AttributeError: .* \(bug_models.py:\d+ in predict\)"):
            submit_and_wait(engine, rows(*range(64)), id="a")
        assert engine.statistics().calls == 1 + SAMPLED_ROWS


def test_request_above_the_limit_of_a_call_costs_few_calls():
    with running(models.Bug(), finds_broken_model=True) as engine:
        with pytest.raises(BrokenModelError) as caught:
            submit_and_wait(engine, rows(*range(640)), id="a")
        assert engine.statistics().calls == 1 + SAMPLED_ROWS
    assert caught.value.traceback.kind == "AttributeError"


def test_request_that_is_submitted_again_is_searched():
    """Its client gets an outcome for each row. Other requests are checked meanwhile."""
    with running(models.Bug(), finds_broken_model=True) as engine:
        for id in ("a", "b"):
            with pytest.raises(BrokenModelError):
                submit_and_wait(engine, rows(*range(64)), id=id)
        response = submit_and_wait(engine, rows(*range(64)), id="a")
        with pytest.raises(BrokenModelError):
            submit_and_wait(engine, rows(*range(64)), id="c")
    assert len(response.failures) == 64
    assert len({failure.traceback.key for failure in response.failures}) == 1


def test_request_without_an_id_is_searched():
    """A second submission could not be recognised."""
    with running(models.Bug(), finds_broken_model=True) as engine:
        assert len(submit_and_wait(engine, rows(*range(64))).failures) == 64


def test_number_of_checked_requests_is_bounded():
    check = BrokenModelCheck()
    for number in range(REQUESTS_MAX):
        assert check.is_open
        assert check.fails_alike(str(number), 100, FIRST, lambda _: FIRST)
    assert not check.is_open


@for_each("good", [{0}, {63}, {17}, {5, 40}])
def test_good_rows_among_bad_ones_are_found(good):
    """A sampled good row ends the check; without one, the second submission finds each good row."""
    x = rows(*(1.0 if row in good else -1.0 for row in range(64)))
    with running(models.PickyCode(), finds_broken_model=True) as engine:
        for _ in range(2):
            try:
                response = submit_and_wait(engine, x, id="a")
                break
            except BrokenModelError:
                continue
    assert sorted({*range(64)} - {f.row for f in response.failures}) == sorted(good)


def test_one_bad_row_is_found_as_before():
    x = rows(*(-1.0 if row == 9 else 1.0 for row in range(64)))
    with running(models.PickyCode(), finds_broken_model=True) as engine:
        (failure,) = submit_and_wait(engine, x, id="a").failures
    assert (failure.row, failure.traceback.kind) == (9, "ValueError")


def test_refused_rows_are_no_sign_of_a_broken_model():
    x = rows(*range(2000, 2064))
    with running(models.PickyCode(), finds_broken_model=True) as engine:
        response = submit_and_wait(engine, x, id="a")
    assert {f.traceback for f in response.failures} == {None}
    assert len(response.failures) == 64


def test_no_check_after_a_success():
    with running(models.PickyCode(), finds_broken_model=True) as engine:
        submit_and_wait(engine, rows(1))
        response = submit_and_wait(engine, rows(*[-1.0] * 32), id="a")
    assert len(response.failures) == 32


def test_no_check_without_the_setting():
    with running(models.Bug()) as engine:
        assert len(submit_and_wait(engine, rows(*range(32)), id="a").failures) == 32


def test_memory_that_is_too_small_is_no_bug():
    class Limited(Model):
        max_batch_rows = 64

        def predict(self, x):
            if len(x) > 4:
                raise MemoryError("out of memory")
            return x

    with running(Limited(), finds_broken_model=True) as engine:
        assert submit_and_wait(engine, rows(*range(64)), id="a").failures == ()


def test_check_ends_at_another_exception():
    check = BrokenModelCheck()
    other = ModelTraceback("ValueError", file="m.py", line=4)
    assert not check.fails_alike("a", 100, FIRST, lambda _: other)
    assert not check.is_open


def test_check_ends_at_a_request_that_fails_in_another_way():
    check = BrokenModelCheck()
    assert check.fails_alike("a", 100, FIRST, lambda _: FIRST)
    assert check.is_open
    other = ModelTraceback("ValueError", file="m.py", line=4)
    assert not check.fails_alike("a", 100, other, lambda _: pytest.fail("no sample is needed"))
    assert not check.is_open


def test_check_of_few_rows_is_left_to_the_search():
    check = BrokenModelCheck()
    assert not check.fails_alike("a", SAMPLED_ROWS, FIRST, lambda _: pytest.fail("no sample is needed"))
    assert check.is_open


def test_each_instance_has_its_own_check():
    entered = threading.Barrier(2, timeout=WAIT_S)

    class Meeting(models.Bug):
        def predict(self, x):
            if len(x) > 1:
                entered.wait()
            return super().predict(x)

    with running(Meeting, instances=2, finds_broken_model=True) as engine:
        futures = [engine.submit(request(rows(*range(64)), id=id)) for id in "ab"]
        errors = [future.exception(WAIT_S) for future in futures]
    assert [type(error) for error in errors] == [BrokenModelError] * 2
    assert engine.statistics().calls == 2 * (1 + SAMPLED_ROWS)
