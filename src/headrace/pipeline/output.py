"""Which encoder writes a run's parts, from the settings and what the source turned out to be."""

from collections.abc import Callable

from headrace.core.tensor import Array
from headrace.formats.contract import Encoder
from headrace.pipeline.flow import Flow
from headrace.pipeline.settings import StreamSettings


def encoder_factory(settings: StreamSettings, flow: Flow) -> Callable[[dict[str, Array]], Encoder]:
    """Makes a part's encoder from its first outputs; asked only after the flow's first batch."""
    raise NotImplementedError
