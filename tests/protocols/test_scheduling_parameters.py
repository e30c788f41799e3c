"""Priority and timeout, as Triton's clients send them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError
from headrace.core.tensor import DEFAULT_PRIORITY, InferRequest, Tensor
from headrace.protocols.oip_json import apply_scheduling_parameters


def request(deadline=None, **parameters) -> InferRequest:
    return InferRequest((Tensor("x", np.zeros(1)),), parameters=parameters, deadline=deadline)


def test_request_without_parameters_is_unchanged():
    for plain in (request(), request(other=1), request(priority=0, timeout=0)):
        assert apply_scheduling_parameters(plain, 5.0) is plain


def test_timeout_is_microseconds_from_now():
    found = apply_scheduling_parameters(request(timeout=1_500_000, kept="p"), 10.0)
    assert found.deadline == 11.5
    assert found.priority == DEFAULT_PRIORITY
    assert found.parameters["kept"] == "p"


def test_earlier_deadline_counts():
    assert apply_scheduling_parameters(request(deadline=10.5, timeout=1_000_000), 10.0).deadline == 10.5
    assert apply_scheduling_parameters(request(deadline=12.0, timeout=1_000_000), 10.0).deadline == 11.0
    assert apply_scheduling_parameters(request(deadline=12.0, priority=1), 10.0).deadline == 12.0


def test_whole_floats_are_whole_numbers():
    found = apply_scheduling_parameters(request(priority=3.0, timeout=1e6), 10.0)
    assert (found.priority, type(found.priority), found.deadline) == (3, int, 11.0)


@given(st.integers(0, 2**64), st.integers(0, 2**64), st.floats(0, 1e9))
def test_whole_numbers_of_any_size_are_accepted(priority, timeout, now):
    found = apply_scheduling_parameters(request(priority=priority, timeout=timeout), now)
    assert (found.priority == DEFAULT_PRIORITY) if priority == 0 else (1 <= found.priority <= 2**32)
    assert (found.deadline is None) is (timeout == 0)
    assert found.deadline is None or found.deadline >= now


@pytest.mark.parametrize("key", ["priority", "timeout"])
@given(
    value=st.none()
    | st.booleans()
    | st.floats().filter(lambda number: not number.is_integer() or number < 0)
    | st.text()
    | st.integers(max_value=-1)
    | st.lists(st.integers())
)
def test_other_values_are_refused_by_name(key, value):
    with pytest.raises(DataError, match=f"'{key}' must be a whole number"):
        apply_scheduling_parameters(request(**{key: value}), 0.0)
