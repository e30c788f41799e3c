"""The conformance suites for services and predictors."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

from headrace.core.errors import HeadraceError, ModelError, StoppedError
from headrace.core.predictor import Predictor, Service
from headrace.core.tensor import InferRequest, InferResponse

_ROUNDS = 5
_THREADS = 4
_WAIT_S = 30.0


def check_service(make: Callable[[], Service]) -> None:
    """Check the lifecycle of a service.

    Calls come in any order and from several threads; afterwards no thread is left. `make` returns a
    new, stopped service each time. Raise AssertionError with the broken guarantee.
    """
    _check_stop_before_start(make())
    for drain in (True, False):
        _check_lifecycle(make(), drain=drain)
    for _ in range(_ROUNDS):
        _check_concurrent_starts_and_stops(make())


def _check_stop_before_start(service: Service) -> None:
    before = _threads()
    service.stop()
    service.stop(drain=False)
    _require_no_new_threads(before, "stop before start")


def _check_lifecycle(service: Service, *, drain: bool) -> None:
    before = _threads()
    service.start()
    first = _threads() - before
    service.start()
    second = _threads() - before
    assert second == first, f"a second start created threads: {_names(second - first)}"
    service.stop(drain=drain)
    _require_no_new_threads(before, f"stop(drain={drain})")
    service.stop(drain=drain)
    service.stop(drain=not drain)
    _require_no_new_threads(before, "a second stop")


def _check_concurrent_starts_and_stops(service: Service) -> None:
    """Check that all calls return in any order, and that the last stop leaves no threads."""
    before = _threads()
    barrier = threading.Barrier(_THREADS)

    def call(number: int) -> None:
        barrier.wait(_WAIT_S)
        if number % 2:
            service.stop(drain=number % 4 == 1)
            return
        # A stop may interrupt `start`, which may then raise StoppedError.
        with suppress(StoppedError):
            service.start()

    with ThreadPoolExecutor(_THREADS) as pool:
        calls = [pool.submit(call, n) for n in range(_THREADS)]
        _require_done(calls, "concurrent starts and stops")
        service.start()
        stops = [pool.submit(service.stop, drain=n % 2 == 0) for n in range(_THREADS)]
        _require_done(stops, "concurrent stops")
    _require_no_new_threads(before, "concurrent stops")


def check_predictor(make: Callable[[], Predictor], request: InferRequest) -> None:
    """Run `check_service` on a predictor, and check the guarantees of `submit`.

    The predictor must respond to `request` within seconds, with the same outputs each time. Raise
    AssertionError with the broken guarantee.
    """
    check_service(make)
    _check_not_running(make(), request)
    _check_responses(make(), request)
    _check_strict(make(), request)
    _check_stop_without_drain(make(), request)


def _check_not_running(predictor: Predictor, request: InferRequest) -> None:
    _require_stopped_error(predictor, request, "before start")
    predictor.start()
    predictor.stop()
    _require_stopped_error(predictor, request, "after stop")


def _require_stopped_error(predictor: Predictor, request: InferRequest, when: str) -> None:
    try:
        predictor.submit(request)
    except StoppedError:
        return
    raise AssertionError(f"submit {when} must raise StoppedError")


def _check_strict(predictor: Predictor, request: InferRequest) -> None:
    """Check that a strict request with a refused row fails as a whole."""
    predictor.start()
    try:
        refused = predictor.submit(request).result(_WAIT_S).failures
        error = predictor.submit(request, strict=True).exception(_WAIT_S)
    finally:
        predictor.stop()
    if refused:
        assert isinstance(error, ModelError), f"a strict request with a refused row ended with {error!r}"
    else:
        assert error is None, f"a strict request without refused rows failed with {error!r}"


def _check_responses(predictor: Predictor, request: InferRequest) -> None:
    """Check more requests than fit at once, submitted by several threads and finished by a drain."""
    predictor.start()
    count = 2 * predictor.in_flight_max + 1
    with ThreadPoolExecutor(_THREADS) as pool:
        submissions = [pool.submit(predictor.submit, request) for _ in range(count)]
        _require_done(submissions, "submitting beyond in_flight_max")
    futures = [s.result() for s in submissions]
    predictor.stop(drain=True)
    unfinished = sum(not f.done() for f in futures)
    assert not unfinished, f"{unfinished} of {count} accepted requests were unfinished after stop(drain=True)"
    for future in futures:
        _check_response(request, future.result())
    statistics = predictor.statistics()
    counted = statistics.rows + statistics.failed_rows
    assert counted == count * request.rows, (
        f"statistics count {counted} rows, expected {count * request.rows}"
    )


def _check_response(request: InferRequest, response: InferResponse) -> None:
    assert response.id == request.id, f"the response to request {request.id!r} has id {response.id!r}"
    good = request.rows - len(response.failures)
    for output in response.outputs:
        assert output.rows == good, f"output {output.name!r} has {output.rows} rows, expected {good}"
    failed = [f.row for f in response.failures]
    assert failed == sorted(set(failed)), f"failures are not sorted by row: {failed}"


def _check_stop_without_drain(predictor: Predictor, request: InferRequest) -> None:
    """Check that every accepted request ends, with a response or with StoppedError."""
    predictor.start()
    futures = [predictor.submit(request) for _ in range(predictor.in_flight_max)]
    predictor.stop(drain=False)
    for future in futures:
        assert future.done(), "a request was unfinished after stop(drain=False)"
        error = future.exception()
        assert error is None or isinstance(error, StoppedError), (
            f"a request failed with {error!r} after stop(drain=False), expected StoppedError"
        )


def _require_done(futures: Iterable[Future[Any]], step: str) -> None:
    done, late = wait(futures, _WAIT_S)
    assert not late, f"{step}: {len(late)} calls did not return within {_WAIT_S} s"
    for future in done:
        error = future.exception()
        assert error is None or isinstance(error, HeadraceError), f"{step} raised {error!r}"
        if error is not None:
            raise error


def _threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def _require_no_new_threads(before: set[threading.Thread], step: str) -> None:
    remaining = {
        t for t in _threads() - before if t.is_alive() and not t.name.startswith("ThreadPoolExecutor")
    }
    assert not remaining, f"threads still run after {step}: {_names(remaining)}"


def _names(threads: set[threading.Thread]) -> str:
    return ", ".join(sorted(t.name for t in threads))
