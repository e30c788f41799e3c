"""Several services as one."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from typing_extensions import override

from headrace.core.predictor import Service


class ServiceGroup(Service):
    """Several services as one: started in order, stopped in reverse order.

    At the end of a stop, `close` is called, when no service is left. `stop` is thread-safe, so that a
    second signal can stop without drain while a drain is running.
    """

    def __init__(self, services: Sequence[Service], close: Callable[[], None] = lambda: None) -> None:
        self._services = services
        self._close = close

    @override
    def start(self) -> None:
        with ExitStack() as started:
            for service in self._services:
                # Register first: a service that fails to start may have started in part.
                started.callback(service.stop, drain=False)
                service.start()
            started.pop_all()

    @override
    def stop(self, *, drain: bool = True) -> None:
        with ExitStack() as stack:
            stack.callback(self._close)
            for service in self._services:
                stack.callback(service.stop, drain=drain)
