import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import DataError, PredictError
from headrace.core.tensor import InferRequest, Tensor
from headrace.server.errors import status_of
from headrace.server.observation import Observers, RequestObservation, safe_id, tracing_wanted


def seen(**headers: str) -> RequestObservation:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return RequestObservation("rest", "POST", "/v2/models/m/infer", began_s=10.0, header=named.get)


@given(st.text())
def test_safe_id_never_contains_header_separators(text):
    """An echoed id is short printable ASCII without spaces, or empty."""
    echoed = safe_id(text)
    assert echoed in ("", text)
    assert all("!" <= c <= "~" for c in echoed)
    assert len(echoed) <= 128


@for_each("text", [None, "", "a b", "a\r\nb", "é", "x" * 129])
def test_unsafe_request_id_is_replaced(text):
    made = seen(**({} if text is None else {"x_request_id": text})).request_id
    assert made != text
    assert len(made) == 32


def test_safe_request_id_is_kept():
    assert seen(x_request_id="abc-1").request_id == "abc-1"


def test_rows_of_any_request_are_recorded():
    """Also of a request that its model refuses, or that has tensors without axes."""
    for shapes, rows in ([[(2, 3)], 2], [[()], 1], [[(), (3,)], 3], [[(2,), (3,)], 3], [[], 0]):
        one = seen()
        one.on_request(InferRequest(tuple(Tensor(f"x{i}", np.zeros(s)) for i, s in enumerate(shapes))))
        assert one.rows == rows


def test_clock_times_convert_to_epoch_times():
    one = seen()
    assert one.epoch_ns(10.0) == one.began_ns
    assert one.epoch_ns(10.25) - one.began_ns == 250_000_000


@for_each(
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
def test_fault_tells_server_errors_from_client_errors(status, error, fault):
    one = seen()
    one.status = status
    if error is not None:
        one.on_error(error, status_of(error))
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


def test_failing_observer_does_not_affect_others(caplog):
    received: list[str] = []
    observers = Observers([_Noting("a", received, breaks=True), _Noting("b", received)])
    one = seen()
    observers.begin(one)
    observers.end(one)
    assert received == ["a begins", "b begins", "b ends", "a ends"]
    assert [record.message for record in caplog.records] == [
        "an observer failed at the start of a request",
        "an observer failed at the end of a request",
    ]


@for_each(
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
def test_environment_enables_tracing(environment, wanted):
    assert tracing_wanted(environment) is wanted
