"""What everything that runs must do, and everything that predicts: checks that any implementation can be put through."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

from headrace.core.errors import HeadraceError, StoppedError
from headrace.core.predictor import Predictor
from headrace.core.service import Service
from headrace.core.tensor import InferRequest, InferResponse

_ROUNDS = 5
_THREADS = 4
_WAIT_S = 30.0


def check_service(make: Callable[[], Service]) -> None:
    """Put a service through its life: legal in any order, and nothing left running.

    `make` gives a new service each time, not started. Raises AssertionError saying which promise broke.
    """
    _check_stop_before_start(make())
    for drain in (True, False):
        _check_life(make(), drain=drain)
    for _ in range(_ROUNDS):
        _check_concurrent_starts_and_stops(make())


def _check_stop_before_start(service: Service) -> None:
    before = _threads()
    service.stop()
    service.stop(drain=False)
    _nothing_new(before, "stop before start")


def _check_life(service: Service, *, drain: bool) -> None:
    before = _threads()
    service.start()
    once = _threads() - before
    service.start()
    again = _threads() - before
    assert again == once, f"a second start began threads: {_listed(again - once)}"
    service.stop(drain=drain)
    _nothing_new(before, f"stop(drain={drain})")
    service.stop(drain=drain)
    service.stop(drain=not drain)
    _nothing_new(before, "stopping again")


def _check_concurrent_starts_and_stops(service: Service) -> None:
    """Whatever the order in which threads get there, all return, and the last stop leaves nothing."""
    before = _threads()
    line = threading.Barrier(_THREADS)

    def act(number: int) -> None:
        line.wait(_WAIT_S)
        if number % 2:
            service.stop(drain=number % 4 == 1)
            return
        # A stop may come in between, and `start` may say so.
        with suppress(StoppedError):
            service.start()

    with ThreadPoolExecutor(_THREADS) as pool:
        acts = [pool.submit(act, n) for n in range(_THREADS)]
        _all_done(acts, "concurrent starts and stops")
        service.start()
        stops = [pool.submit(service.stop, drain=n % 2 == 0) for n in range(_THREADS)]
        _all_done(stops, "concurrent stops")
    _nothing_new(before, "concurrent stops")


def check_predictor(make: Callable[[], Predictor], request: InferRequest) -> None:
    """Put a predictor through `check_service`, and through what submitting promises.

    `request` must be one that it answers, within seconds and with the same outputs each time. Raises
    AssertionError saying which promise broke.
    """
    check_service(make)
    _check_not_running(make(), request)
    _check_answers(make(), request)
    _check_stop_without_drain(make(), request)


def _check_not_running(predictor: Predictor, request: InferRequest) -> None:
    _must_refuse(predictor, request, "before start")
    predictor.start()
    predictor.stop()
    _must_refuse(predictor, request, "after stop")


def _must_refuse(predictor: Predictor, request: InferRequest, when: str) -> None:
    try:
        predictor.submit(request)
    except StoppedError:
        return
    raise AssertionError(f"submit {when} must raise StoppedError")


def _check_answers(predictor: Predictor, request: InferRequest) -> None:
    """More requests than fit at once, from several threads; what was accepted is finished by a drain."""
    predictor.start()
    count = 2 * predictor.in_flight_max + 1
    with ThreadPoolExecutor(_THREADS) as pool:
        asking = [pool.submit(predictor.submit, request) for _ in range(count)]
        _all_done(asking, "submitting beyond in_flight_max")
    futures = [a.result() for a in asking]
    predictor.stop(drain=True)
    open_still = sum(not f.done() for f in futures)
    assert not open_still, f"{open_still} of {count} accepted requests were unanswered after stop(drain=True)"
    for future in futures:
        _check_law(request, future.result())
    statistics = predictor.statistics()
    answered = statistics.rows + statistics.failed_rows
    assert answered == count * request.rows, f"statistics tell of {answered} rows, not {count * request.rows}"


def _check_law(request: InferRequest, response: InferResponse) -> None:
    assert response.id == request.id, f"request {request.id!r} was answered as {response.id!r}"
    good = request.rows - len(response.failures)
    for output in response.outputs:
        assert output.rows == good, f"output {output.name!r} has {output.rows} rows, not {good}"
    failed = [f.row for f in response.failures]
    assert failed == sorted(set(failed)), f"failures are not sorted by row: {failed}"


def _check_stop_without_drain(predictor: Predictor, request: InferRequest) -> None:
    """Every accepted request has an end, if only StoppedError."""
    predictor.start()
    futures = [predictor.submit(request) for _ in range(predictor.in_flight_max)]
    predictor.stop(drain=False)
    for future in futures:
        assert future.done(), "a request was unanswered after stop(drain=False)"
        error = future.exception()
        assert error is None or isinstance(error, StoppedError), f"stop failed a request with {error!r}"


def _all_done(futures: Iterable[Future[Any]], what: str) -> None:
    done, late = wait(futures, _WAIT_S)
    assert not late, f"{what}: {len(late)} calls hang"
    for future in done:
        error = future.exception()
        assert error is None or isinstance(error, HeadraceError), f"{what} raised {error!r}"
        if error is not None:
            raise error


def _threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def _nothing_new(before: set[threading.Thread], after_what: str) -> None:
    left = {t for t in _threads() - before if t.is_alive() and not t.name.startswith("ThreadPoolExecutor")}
    assert not left, f"after {after_what} threads still run: {_listed(left)}"


def _listed(threads: set[threading.Thread]) -> str:
    return ", ".join(sorted(t.name for t in threads))
