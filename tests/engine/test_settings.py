import pytest

from headrace.core.errors import ConfigError
from headrace.engine.settings import ServeSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"instances": 0},
        {"queue_rows_max": 0},
        {"streams_max": -1},
        {"max_batch_rows": 0},
        {"max_batch_delay_ms": -1.0},
        {"call_timeout_s": 0.0},
        {"cancel_grace_s": -1.0},
        {"cancel_grace_s": float("nan")},
        {"memory_bytes_max": 0},
        {"processes_max": 0},
        {"environ_pass": ("A=b",)},
        {"environ_pass": ("",)},
        {"isolation": "elsewhere"},
    ],
)
def test_what_leaves_no_room_is_refused_by_its_name(wrong):
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        ServeSettings(**wrong)
