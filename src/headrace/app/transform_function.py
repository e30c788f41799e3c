"""The type of `headrace.transform`, which takes the URIs of objects, or a dataframe."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from headrace.app.models import ModelLike, PredictorOptions
from headrace.runs.settings import TransformSettings
from headrace.storage.resolve import Stores

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Dataframe(Protocol):
    """A table of pandas, polars or pyarrow, or a local dataset of Hugging Face `datasets`."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        ...


FrameT = TypeVar("FrameT", bound=Dataframe)


class TransformFunction(Protocol[P, R_co]):
    """A function of `P` for objects, and for dataframes the function `transform_dataframe`."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(
        self,
        source: FrameT,
        *,
        model: ModelLike | None = None,
        endpoint: str | None = None,
        settings: TransformSettings | None = None,
        options: PredictorOptions | None = None,
        stores: Stores | None = None,
    ) -> FrameT: ...


def accepts_dataframes(function: Callable[P, R]) -> TransformFunction[P, R]:
    """Make a function of objects score dataframes, too. Its result for a dataframe is a dataframe."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        source = args[0] if args else kwargs.get("source")
        if source is None or isinstance(source, str | Sequence):
            return function(*args, **kwargs)
        from headrace.app.dataframes import transform_dataframe  # noqa: PLC0415 - needs pyarrow

        return transform_dataframe(*args, **kwargs)

    return call
