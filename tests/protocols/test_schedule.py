"""Priority and timeout, as Triton's clients send them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError
from headrace.core.tensor import DEFAULT_PRIORITY, InferRequest, Tensor
from headrace.protocols.schedule import scheduled


def request(deadline=None, **parameters) -> InferRequest:
    return InferRequest((Tensor("x", np.zeros(1)),), parameters=parameters, deadline=deadline)


def test_nothing_asked_is_the_same_request():
    for asked in (request(), request(other=1), request(priority=0, timeout=0)):
        assert scheduled(asked, 5.0) is asked


def test_a_timeout_counts_in_microseconds_from_now():
    found = scheduled(request(timeout=1_500_000, kept="p"), 10.0)
    assert found.deadline == 11.5
    assert found.priority == DEFAULT_PRIORITY
    assert found.parameters["kept"] == "p"


def test_the_earlier_deadline_counts():
    assert scheduled(request(deadline=10.5, timeout=1_000_000), 10.0).deadline == 10.5
    assert scheduled(request(deadline=12.0, timeout=1_000_000), 10.0).deadline == 11.0
    assert scheduled(request(deadline=12.0, priority=1), 10.0).deadline == 12.0


@given(st.integers(0, 2**64), st.integers(0, 2**64), st.floats(0, 1e9))
def test_whole_numbers_are_taken_whatever_their_size(priority, timeout, now):
    found = scheduled(request(priority=priority, timeout=timeout), now)
    assert (found.priority == DEFAULT_PRIORITY) if priority == 0 else (1 <= found.priority <= 2**32)
    assert (found.deadline is None) is (timeout == 0)
    assert found.deadline is None or found.deadline >= now


@pytest.mark.parametrize("key", ["priority", "timeout"])
@given(
    value=st.none()
    | st.booleans()
    | st.floats()
    | st.text()
    | st.integers(max_value=-1)
    | st.lists(st.integers())
)
def test_anything_else_is_refused_by_its_name(key, value):
    with pytest.raises(DataError, match=f"'{key}' must be a whole number"):
        scheduled(request(**{key: value}), 0.0)
