"""A few refused rows are rows; nothing but refused rows is a wrong request."""

import pytest

from headrace.client.refusals import REFUSED_ROWS_MAX, RefusalGuard
from headrace.core.errors import EndpointRefusedError


def test_nothing_but_refusals_end_the_run_with_the_last_of_them():
    guard = RefusalGuard("http://h/m")
    for _ in range(REFUSED_ROWS_MAX - 1):
        guard.refused("HTTP 400: no input 'x'", 400)
    with pytest.raises(EndpointRefusedError, match=r"each of the first 100 rows.*no input 'x'") as caught:
        guard.refused("HTTP 400: no input 'x'", 400)
    assert (caught.value.url, caught.value.status) == ("http://h/m", 400)


def test_once_a_row_was_answered_any_number_may_be_refused():
    guard = RefusalGuard("u")
    guard.answered(1)
    for _ in range(2 * REFUSED_ROWS_MAX):
        guard.refused("x", 400)
    assert (guard.answered_rows, guard.refused_rows) == (1, 2 * REFUSED_ROWS_MAX)
