import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError, PredictError
from headrace.server.errors import status_of
from headrace.server.observation import Observation, Observers, safe_id, tracing_wanted


def seen(**headers: str) -> Observation:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Observation("rest", "POST", "/v2/models/m/infer", began_s=10.0, header=named.get)


@given(st.text())
def test_an_id_that_is_sent_cannot_end_a_header(text):
    """Whatever a caller sends, what is echoed is printable ASCII without spaces, short, and else nothing."""
    echoed = safe_id(text)
    assert echoed in ("", text)
    assert all("!" <= c <= "~" for c in echoed)
    assert len(echoed) <= 128


@pytest.mark.parametrize("text", [None, "", "a b", "a\r\nb", "é", "x" * 129])
def test_an_id_that_is_none_is_replaced(text):
    made = seen(**({} if text is None else {"x_request_id": text})).request_id
    assert made != text
    assert len(made) == 32


def test_an_id_of_the_caller_is_kept():
    assert seen(x_request_id="abc-1").request_id == "abc-1"


def test_times_of_the_clock_become_times_of_the_day():
    one = seen()
    assert one.epoch_ns(10.0) == one.began_ns
    assert one.epoch_ns(10.25) - one.began_ns == 250_000_000


@pytest.mark.parametrize(
    ("status", "error", "fault"),
    [
        (200, None, False),
        (404, None, False),
        (503, None, True),
        ("OK", None, False),
        ("INVALID_ARGUMENT", None, False),
        ("INTERNAL", None, True),
        (200, PredictError("m", "broke later"), True),
        (200, DataError("no"), False),
    ],
)
def test_whose_fault_it_was(status, error, fault):
    one = seen()
    one.status = status
    if error is not None:
        one.failed(error, status_of(error))
    assert one.fault is fault


class _Noting:
    def __init__(self, name, told, *, breaks=False):
        self.name, self.told, self.breaks = name, told, breaks

    def begin(self, seen):
        self.told.append(f"{self.name} begins")
        if self.breaks:
            raise RuntimeError("broken observer")

    def end(self, seen):
        self.told.append(f"{self.name} ends")
        if self.breaks:
            raise RuntimeError("broken observer")


def test_an_observer_that_breaks_harms_no_other(caplog):
    told: list[str] = []
    observers = Observers([_Noting("a", told, breaks=True), _Noting("b", told)])
    one = seen()
    observers.begin(one)
    observers.end(one)
    assert told == ["a begins", "b begins", "b ends", "a ends"]
    assert [record.message for record in caplog.records] == [
        "a request could not be observed",
        "a request could not be observed to its end",
    ]


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_made_where_the_environment_asks_for_them(environment, wanted):
    assert tracing_wanted(environment) is wanted
