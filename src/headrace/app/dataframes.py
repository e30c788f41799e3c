"""Score the rows of a dataframe, and add the outputs as columns.

pandas, polars and datasets are never imported: a dataframe comes from a library that is loaded.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import numpy as np
from typing_extensions import override

from headrace.app.models import ModelLike, PredictorOptions, RunningPredictor, open_run_predictor
from headrace.core.block import Block, Failure, Position
from headrace.core.errors import ConfigError, CountMismatchError, DataError, TooManyFailuresError
from headrace.core.tensor import Array, ModelMetadata
from headrace.formats.arrow import pyarrow
from headrace.formats.contract import BLOCK_BYTES_MAX, Encoder
from headrace.formats.parquet_read import ROWS_MAX
from headrace.formats.record_table import table_blocks
from headrace.runs.encoders import Encoders
from headrace.runs.flow import Flow
from headrace.runs.items import BlockSource, ReadBlock, ScoredBatch
from headrace.runs.mapping import SAMPLE_RECORDS, Mapper
from headrace.runs.settings import RunSettings, SubsetSettings, TransformSettings
from headrace.storage.resolve import Stores

ERROR: Final = "error"
"""The name of the column with the reasons of failed rows."""
_NAME: Final = "dataframe"
_SHOWN: Final = 3
"""The number of failed rows that an error shows."""


def transform_dataframe(
    source: Any,
    *,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: TransformSettings | None = None,
    options: PredictorOptions | None = None,
    stores: Stores | None = None,
) -> Any:
    """Return a dataframe of the same kind with the outputs of a model as new columns.

    The rows, their order, the columns and the index stay as they are; `source` is not changed. Rows are
    converted and scored in batches, so that memory is bounded besides the result. A null in a
    column that the model takes fails its row; NaN in a column of floats reaches the model.

    A failed row raises, unless ``settings.failures.on_error`` is "record". Then its outputs are null, and
    a column ``error`` has the reason, null for predicted rows. In pandas, outputs of integers and booleans
    then have pandas' nullable types.

    Raises:
        ConfigError: Invalid arguments, an unknown kind of dataframe, or an output with the name of a column.
        DataError: A column has no type in Arrow, or TooManyFailuresError for failed rows.
        BrokenModelError: The model raised the same exception for every row of its first batches, and
            `settings.failures` sets no `on_error`.
        HeadraceError: The model does not load or breaks its contract.
    """
    frame, chosen = _open(source), _checked(settings or TransformSettings())
    opened = open_run_predictor(model, endpoint, options, chosen, stores)
    with RunningPredictor(opened.predictor):
        metadata = opened.predictor.metadata
        mapper = Mapper(metadata, chosen.mapping, chosen.read)
        flow = Flow(
            _FrameSource(frame, chosen.read.record_bytes_max),
            mapper,
            opened.predictor,
            chosen.flow,
            stops_broken_model=chosen.failures.stops_broken_model,
        )
        outputs = _Outputs(frame, chosen, Encoders(chosen, mapper))
        with closing(flow):
            for batch in flow:
                outputs.add(batch)
        return frame.with_columns(outputs.finish(metadata), nullable=outputs.keeps_failed)


def _checked(settings: TransformSettings) -> TransformSettings:
    """Return the settings for a dataframe. Raise ConfigError for settings that it does not support."""
    if settings.subset != SubsetSettings() or settings.schema != "infer":
        raise ConfigError("a dataframe is scored whole, with the types that it has: select its rows before")
    if not settings.failures.has_default_limit:
        raise ConfigError(
            'limits of failed rows have no meaning for a dataframe: with on_error="record" count those '
            f"with a text in the column {ERROR}, without it the first failed row raises"
        )
    if settings.output.partition_by:
        raise ConfigError("partition_by divides files: group the dataframe by its columns afterwards")
    output = replace(settings.output, format="arrow", join="none", output_filter="$")
    return replace(settings, read=replace(settings.read, format="parquet"), output=output)


class _Outputs:
    """The outputs of the predicted rows, as an Arrow file in memory, and the reasons of the failed rows."""

    def __init__(self, frame: "_Frame", settings: RunSettings, encoders: Encoders) -> None:
        self.keeps_failed = settings.failures.on_error == "record"
        self._frame = frame
        self._encoders = encoders
        self._encoder: Encoder | None = None
        self._file: list[bytes] = []
        self._reasons: dict[int, str] = {}
        self._seen = 0

    def add(self, batch: ScoredBatch) -> None:
        """Add a batch. Raise TooManyFailuresError if failed rows are not kept."""
        self._seen += batch.entries
        if batch.failures and not self.keeps_failed:
            raise TooManyFailuresError(_failed_rows(batch.failures, self._seen))
        self._reasons.update((failure.position.record, failure.why) for failure in batch.failures)
        if not batch.rows:
            return
        if self._encoder is None:
            self._check_names(batch.outputs)
            self._encoder = self._encoders.make(batch.outputs, batch.selections[0].block)
            self._file.append(self._encoder.begin())
        self._file.append(self._encoder.encode(batch.selections, batch.outputs))

    def _check_names(self, outputs: Mapping[str, Array]) -> None:
        names = (*outputs, *((ERROR,) if self.keeps_failed else ()))
        if len(set(names)) < len(names):
            raise ConfigError(
                f"the model has an output {ERROR!r}, the name of the column of reasons: rename it"
            )
        clash = [name for name in names if name in self._frame.names]
        if clash:
            raise ConfigError(
                f"the dataframe has a column {clash[0]!r}, the name of a new column: rename or drop it first"
            )

    def finish(self, metadata: ModelMetadata) -> Any:
        """Return the new columns as an Arrow table with one row for each row of the dataframe."""
        if self._encoder is None:
            self._encoder = self._encoders.make_empty(metadata, lambda: Block(Position(_NAME)))
            assert self._encoder is not None, "a table has columns without rows, too"
            self._file.append(self._encoder.begin())
        self._file.append(self._encoder.finish())
        table = pyarrow.ipc.open_file(pyarrow.py_buffer(b"".join(self._file))).read_all()
        rows, failed = self._frame.frame.shape[0], len(self._reasons)
        if table.num_columns and table.num_rows + failed != rows:
            raise CountMismatchError(_NAME, records_in=rows, out=table.num_rows, failed=failed)
        return self._with_failed_rows(table, rows) if self.keeps_failed else table

    def _with_failed_rows(self, table: Any, rows: int) -> Any:
        """Return the table with a row of nulls for each failed row, and the column of reasons."""
        is_failed = np.zeros(rows, bool)
        is_failed[list(self._reasons)] = True
        places = pyarrow.array(np.cumsum(~is_failed) - 1, mask=is_failed)
        columns = [column.take(places) for column in table.columns]
        reasons = pyarrow.array([self._reasons.get(row) for row in range(rows)], pyarrow.string())
        return pyarrow.table([*columns, reasons], names=[*table.column_names, ERROR])


def _failed_rows(failures: Sequence[Failure], seen: int) -> str:
    shown = "; ".join(f"row {failure.position.record}: {failure.why}" for failure in failures[:_SHOWN])
    return (
        f"{len(failures)} of the first {seen} rows of the dataframe failed: {shown}. Repair or drop these "
        f'rows, or set FailurePolicy(on_error="record") to get nulls, and the reasons in a column {ERROR}'
    )


class _FrameSource(BlockSource):
    """The rows of a dataframe as blocks of about `BLOCK_BYTES_MAX`."""

    def __init__(self, frame: "_Frame", record_bytes_max: int) -> None:
        self._frame = frame
        self._record_bytes_max = record_bytes_max
        self.bytes_read = 0
        self.objects_read = 0

    @property
    @override
    def reading(self) -> str:
        return _NAME

    @override
    def blocks(self) -> Iterator[ReadBlock]:
        # The first block decides about the schema; its size tells that of the later ones.
        start, size, rows = 0, SAMPLE_RECORDS, self._frame.frame.shape[0]
        while start < rows:
            table = self._frame.rows(start, size)
            position = Position(_NAME, record=start)
            for batch in table.to_batches():
                for block in table_blocks(batch, position, record_bytes_max=self._record_bytes_max):
                    yield ReadBlock(block, 0)
                position = replace(position, record=position.record + batch.num_rows)
            self.bytes_read += table.nbytes
            start += size
            size = min(max(BLOCK_BYTES_MAX * size // max(table.nbytes, 1), 1), ROWS_MAX)
        self.objects_read = 1

    @override
    def close(self) -> None:
        """Do nothing: no row is read ahead."""


class _Frame:
    """A pyarrow table, and the base class of the other kinds of dataframes."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.names = self._names()

    def _names(self) -> Sequence[str]:
        return self.frame.column_names

    def rows(self, start: int, count: int) -> Any:
        """Return at most `count` rows as an Arrow table."""
        return self.frame.slice(start, count)

    def with_columns(self, columns: Any, *, nullable: bool) -> Any:
        """Return a dataframe with the columns of an Arrow table; with `nullable` they may have nulls."""
        del nullable  # pandas alone has two types of integers
        result = self.frame
        for name, column in zip(columns.column_names, columns.columns, strict=True):
            result = result.append_column(name, column)
        return result


class _PolarsFrame(_Frame):
    @override
    def _names(self) -> Sequence[str]:
        return self.frame.columns

    @override
    def rows(self, start: int, count: int) -> Any:
        return self.frame.slice(start, count).to_arrow()

    @override
    def with_columns(self, columns: Any, *, nullable: bool) -> Any:
        return self.frame.hstack(type(self.frame)(columns))


class _HuggingFaceFrame(_Frame):
    @override
    def rows(self, start: int, count: int) -> Any:
        return self.frame.with_format("arrow")[start : start + count]

    @override
    def with_columns(self, columns: Any, *, nullable: bool) -> Any:
        result = self.frame
        for name, column in zip(columns.column_names, columns.columns, strict=True):
            result = result.add_column(name, column)
        return result


class _PandasFrame(_Frame):
    @override
    def _names(self) -> Sequence[str]:
        return [str(name) for name in self.frame.columns]

    @override
    def rows(self, start: int, count: int) -> Any:
        part = self.frame.iloc[start : start + count]
        columns = [self._column(name, part.iloc[:, index]) for index, name in enumerate(self.names)]
        return pyarrow.table(columns, names=self.names)

    def _column(self, name: str, series: Any) -> Any:
        try:
            if series.dtype in (np.float16, np.float32, np.float64):
                return pyarrow.array(series.to_numpy())  # NaN stays a number
            if getattr(series.dtype, "tz", None) is not None:
                # Arrow reads the values of such a series in a way that pandas deprecates.
                times = series.dt.tz_convert(None).to_numpy()
                return pyarrow.array(times, pyarrow.timestamp(series.dt.unit, "UTC"))
            return pyarrow.array(series, from_pandas=True)
        except (pyarrow.ArrowException, ValueError, TypeError) as error:
            raise DataError(
                f"the column {name!r} of the dataframe has no type in Arrow: {error}. Convert it, or drop it"
            ) from error

    @override
    def with_columns(self, columns: Any, *, nullable: bool) -> Any:
        added = columns.to_pandas(integer_object_nulls=True)
        result = self.frame.copy(deep=False)
        for field in columns.schema:
            series = added[field.name]
            kind = _nullable_kind(field.type) if nullable else None
            result[field.name] = (series if kind is None else series.astype(kind)).array
        return result


def _nullable_kind(kind: Any) -> str | None:
    """Return the name of pandas' nullable type of integers or booleans; None for other types."""
    if pyarrow.types.is_boolean(kind):
        return "boolean"
    if not pyarrow.types.is_integer(kind):
        return None
    return f"U{str(kind)[1:].title()}" if pyarrow.types.is_unsigned_integer(kind) else str(kind).title()


_KINDS: Final[Mapping[tuple[str, str], type[_Frame]]] = {
    ("datasets", "Dataset"): _HuggingFaceFrame,
    ("pandas", "DataFrame"): _PandasFrame,
    ("polars", "DataFrame"): _PolarsFrame,
    ("pyarrow", "Table"): _Frame,
}


def _open(source: Any) -> _Frame:
    """Return the adapter of a dataframe. Raise ConfigError for other objects and ambiguous columns."""
    for base in type(source).__mro__:
        kind = _KINDS.get((base.__module__.partition(".")[0], base.__name__))
        if kind is not None:
            frame = kind(source)
            if len(set(frame.names)) < len(frame.names):
                raise ConfigError("the dataframe has two columns of the same name: rename one")
            return frame
    raise ConfigError(
        f"{type(source).__name__} is no source: give the URI of objects, a DataFrame of pandas or polars, a "
        "Table of pyarrow or a Dataset of Hugging Face (of a lazy frame its collect(), of a DatasetDict one "
        "split)"
    )
