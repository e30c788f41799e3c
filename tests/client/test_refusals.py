"""Refused rows and the limit of refusals without a prediction."""

import pytest

from headrace.client.rows import REFUSED_ROWS_MAX, RefusalGuard
from headrace.core.errors import EndpointRefusedError


def test_only_refusals_raise_at_the_limit_with_the_last_reason():
    guard = RefusalGuard("http://h/m")
    for _ in range(REFUSED_ROWS_MAX - 1):
        guard.record_refusal("HTTP 400: no input 'x'", 400)
    with pytest.raises(EndpointRefusedError, match=r"each of the first 100 rows.*no input 'x'") as caught:
        guard.record_refusal("HTTP 400: no input 'x'", 400)
    assert (caught.value.url, caught.value.status) == ("http://h/m", 400)


def test_any_number_of_refusals_is_allowed_after_a_prediction():
    guard = RefusalGuard("u")
    guard.record_success(1)
    for _ in range(2 * REFUSED_ROWS_MAX):
        guard.record_refusal("x", 400)
    assert (guard.predicted_rows, guard.refused_rows) == (1, 2 * REFUSED_ROWS_MAX)
