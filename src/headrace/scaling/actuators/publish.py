"""No actuator at all: pools that something else scales, by the published number of workers."""

from collections.abc import Sequence

from typing_extensions import override

from headrace.jobs.worker_registry import WorkerRecord
from headrace.scaling.actuator import Actuator, Members


class PublishOnly(Actuator):
    """A pool whose workers headrace counts and never starts or ends.

    The decisions of the controller are published all the same: a person, KEDA or an autoscaler of the
    cluster follows them.
    """

    scaled_by_others: bool = True

    @override
    def start(self) -> None:
        pass

    @override
    def stop(self, *, drain: bool = True) -> None:
        pass

    @override
    def members(self, records: Sequence[WorkerRecord]) -> Members:
        return Members(tuple(records))

    @override
    def scale(self, workers: int, ended: Sequence[WorkerRecord] = ()) -> None:
        pass
