"""The settings of a run, with a preset for streams and one for transforms.

Every limit has a default and a unit in its name.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, cast, get_args

from headrace.core.errors import ConfigError, TooManyFailuresError
from headrace.formats.json_path import SliceEnd, compile_path
from headrace.formats.read import ReadOptions

MIB = 1 << 20

DataType = Literal["auto", "prefix", "manifest"]
OutputFormat = Literal["auto", "csv", "jsonl", "json", "text", "parquet", "arrow"]
Assemble = Literal["line", "none"]
Join = Literal["none", "input"]
OnError = Literal["record", "object", "job"]

TABLES: Final[tuple[OutputFormat, ...]] = ("parquet", "arrow")
"""Formats with a footer: an output must be written by one process from its begin to its end."""

BY_OBJECT: Final = "@object"
"""Each object is a sequence with its URI as the id."""
BY_MEMBER: Final = "@member"
"""Each archive member is a sequence, and each object that is not an archive."""
BY_PLACE: Final = (BY_OBJECT, BY_MEMBER)
"""The values of `MappingOptions.sequence` that are not columns."""


@dataclass(frozen=True, slots=True)
class MappingOptions:
    """The mapping of records to model inputs.

    `columns` are names (of the header, or of JSON fields) or indices from 0; empty selects by the
    model's inputs. `text_column` passes one column or field as text to the model's only input.
    `image_scale` multiplies pixels for models with float inputs (default 1/255).

    `input_filter` is a JSONPath (`headrace.formats.json_path`) that selects the part of a CSV or
    JSON record for the model; `columns` and `text_column` refer to that part. `slice_end` is the
    meaning of the second number of its slices. With `whole_records`, a model whose only input is
    text receives whole CSV and JSON records, or the selection of the filter.

    `sequence` is for models with a `step`: the column or field with the sequence id of a record, or
    "@object" or "@member" if each object or archive member is a sequence. Without it, each record
    is a sequence by itself. `sequence_end` is a column or field that is true (or 1) in the last
    record of a sequence; later records with the same id start a new one. A model that takes all
    columns receives neither of these two.

    Raises:
        ConfigError: The filter is unsupported, or the sequence settings contradict each other.
    """

    columns: tuple[str, ...] | tuple[int, ...] = ()
    text_column: str | int | None = None
    image_scale: float = 1 / 255
    input_filter: str = "$"
    slice_end: SliceEnd = "exclusive"
    whole_records: bool = False
    sequence: str | int | None = None
    sequence_end: str | int | None = None

    def __post_init__(self) -> None:
        """Check the filter and the sequence settings."""
        compile_path(self.input_filter, slice_end=self.slice_end)
        if isinstance(self.sequence, str) and self.sequence[:1] in ("", "@") and not self.by_place:
            raise ConfigError(
                f"--sequence {self.sequence!r}: must be a column or field (an index if its name "
                f"begins with @), or one of {', '.join(BY_PLACE)}"
            )
        if self.sequence_end is not None and (self.sequence is None or self.by_place):
            why = f"{self.sequence} defines the ends" if self.by_place else "--sequence is missing"
            raise ConfigError(f"--sequence-end needs a --sequence that names a column: {why}")

    @property
    def by_place(self) -> bool:
        """True if each object or archive member is a sequence."""
        return self.sequence in BY_PLACE


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """The limits between source and predictions.

    A batch closes at `batch_rows_max` records (None: the model's `max_batch_rows`), at
    `batch_bytes_max`, or when its first record has waited `batch_delay_ms` (None: never; batches,
    and with them the last bits of predictions, then depend on the source alone).

    At most `sequences_live_max` sequences may be unfinished at a time, in source order (None: the
    limit of the model). A run that exceeds it ends with LimitError, and can be resumed with another
    limit.
    """

    batch_rows_max: int | None = None
    batch_bytes_max: int = 64 * MIB
    batch_delay_ms: float | None = None
    prefetch_bytes_max: int = 32 * MIB
    prefetch_threads: int = 4
    range_bytes: int = 8 * MIB
    blocks_bytes_max: int = 4 * MIB
    window_bytes_max: int = 16 * MIB
    sequences_live_max: int | None = None

    def __post_init__(self) -> None:
        """Check that all limits are positive."""
        for name, value in asdict(self).items():
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be more than 0, not {value}")


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """The format of the output, and the frequency of commits.

    Attributes:
        format: "csv". "jsonl": one object per record. "json": the same, separated as `assemble` says.
            "text": the model's single text output, unchanged. "parquet". "arrow": an IPC file. "auto":
            csv for a stream; for a transform, jsonl if the records are JSON, else csv.
        join: "input" puts the prediction next to its record.
        output_filter: A JSONPath that selects parts of the joined record or prediction.
        slice_end: The meaning of the end of a JSONPath slice.
        assemble: The separator of json and text records: "line" or "none".
        header: Write a line of column names first, for CSV. None: if the input's header gave names.
        part_bytes_max: A stream publishes a part when it has this size.
        part_rows_max: A stream publishes a part when it has this number of rows.
        checkpoint_s: The maximal work that a crash can lose, in seconds. 0 makes a checkpoint at
            every batch.
    """

    format: OutputFormat = "auto"
    join: Join = "none"
    output_filter: str = "$"
    slice_end: SliceEnd = "exclusive"
    assemble: Assemble = "line"
    header: bool | None = None
    part_bytes_max: int = 16 * MIB
    part_rows_max: int = 10_000_000
    checkpoint_s: float = 5.0

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown word, an invalid filter or a limit that is too small."""
        for name, known in (("format", OutputFormat), ("assemble", Assemble), ("join", Join)):
            _check_choice(name, getattr(self, name), get_args(known))
        compile_path(self.output_filter, slice_end=self.slice_end)
        if self.format in TABLES and self.output_filter != "$":
            raise ConfigError(
                f"output_filter {self.output_filter} needs CSV or JSON records, but the format is "
                f"{self.format}: remove the filter, and select columns when you read the table"
            )
        _check_least(self, part_bytes_max=1, part_rows_max=1, checkpoint_s=0)


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The consequence of a record that cannot be predicted.

    Attributes:
        on_error: "record": the record is written to the file of failed records beside the output.
            "object": its whole object gets no output, as with SageMaker (transforms only). "job": the
            run stops.
        failed_rows_max: The run stops if more records fail.
        failed_share_max: The run stops if a larger share (0 to 1) of all records fails. Checked after
            `SHARE_ROWS_MIN` records, and at the end.
    """

    on_error: OnError = "record"
    failed_rows_max: int | None = None
    failed_share_max: float | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown word or an invalid limit."""
        _check_choice("on_error", self.on_error, get_args(OnError))
        if self.failed_rows_max is not None and self.failed_rows_max < 0:
            raise ConfigError(f"failed_rows_max must be at least 0, not {self.failed_rows_max}")
        if self.failed_share_max is not None and not 0 <= self.failed_share_max <= 1:
            raise ConfigError(f"failed_share_max must be from 0 to 1, not {self.failed_share_max}")

    def check(self, destination: str, failed: int, records: int, *, at_end: bool) -> None:
        """Raise TooManyFailuresError if more records of a run failed than its limits allow."""
        most, share = self.failed_rows_max, self.failed_share_max
        if most is not None and failed > most:
            why = f"{failed:,} records failed, and failed_rows_max is {most:,}"
        elif share is not None and failed > share * records and (at_end or records >= SHARE_ROWS_MIN):
            why = f"{failed:,} of {records:,} records failed, and failed_share_max is {share:g}"
        else:
            return
        raise TooManyFailuresError(
            f"{destination}: {why}. Finished work stays; its failed records are in files beside it. "
            "Continue with --resume and a higher limit"
        )


SHARE_ROWS_MIN = 1000
"""The number of records from which on the share of failures is checked."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The size of tasks. A worker runs a task as a unit; a finished task is never run again.

    Batches do not cross tasks. The output therefore depends on the source and these settings, not
    on the number or the fate of workers.

    Attributes:
        task_bytes: Objects are grouped into tasks of this size. Uncompressed text objects of more than
            twice this size are split into ranges of about this size.
        task_objects_max: The maximal number of objects of a task.
    """

    task_bytes: int = 64 * MIB
    task_objects_max: int = 10_000

    def __post_init__(self) -> None:
        """Raise ConfigError for a limit that is too small."""
        _check_least(self, task_bytes=1, task_objects_max=1)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """All settings that shape the predictions and the output of a run. Use one of its presets."""

    per_object: ClassVar[bool]
    """True if each object has an output of its own, False for numbered parts."""

    read: ReadOptions = field(default_factory=ReadOptions)
    mapping: MappingOptions = field(default_factory=MappingOptions)
    flow: FlowSettings = field(default_factory=FlowSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    tasks: TaskSettings = field(default_factory=TaskSettings)
    data_type: DataType = "auto"

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown word."""
        _check_choice("data_type", self.data_type, get_args(DataType))

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the output; they must be equal in a resumption."""
        flow, output = self.flow, asdict(self.output)
        del output["checkpoint_s"]
        return {
            "data_type": self.data_type,
            "read": asdict(self.read),
            "mapping": asdict(self.mapping),
            "batch": [flow.batch_rows_max, flow.batch_bytes_max, flow.batch_delay_ms],
            "output": output,
            "on_error": self.failures.on_error,
            "tasks": [self.tasks.task_bytes, self.tasks.task_objects_max],
        }


@dataclass(frozen=True, slots=True)
class StreamSettings(RunSettings):
    """The settings of a stream: all predictions in source order, in numbered parts.

    Raises:
        ConfigError: A setting needs an output per object.
    """

    per_object: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that streams do not support."""
        RunSettings.__post_init__(self)
        if self.failures.on_error == "object":
            raise ConfigError(
                "on_error object has no meaning here: a part of a stream has the records of several "
                "objects. Use a transform, which writes one output for each object"
            )
        if self.output.format == "json" or (self.output.format == "text" and self.output.assemble == "none"):
            raise ConfigError(
                f"a stream writes one record per line, not {self.output.format}: choose the format csv, "
                "jsonl, parquet or arrow, or text with assemble line"
            )


@dataclass(frozen=True, slots=True)
class TransformSettings(RunSettings):
    """The settings of a transform: one output for each object.

    Raises:
        ConfigError: A setting needs the records of all objects in one order.
    """

    per_object: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that transforms do not support."""
        RunSettings.__post_init__(self)
        if self.flow.batch_delay_ms is not None:
            raise ConfigError(
                "batch_delay_ms has no meaning here: batches close by rows and bytes, so that a resumed "
                "transform writes the same bytes"
            )
        if self.mapping.sequence is not None:
            raise ConfigError(
                "a transform runs its tasks in any order, so it does not support sequences: use headrace "
                "stream, or headrace.run"
            )


def settings_from_identity(
    identity: Mapping[str, Any],
    *,
    per_object: bool,
    flow: Mapping[str, Any] | None = None,
    checkpoint_s: float | None = None,
) -> RunSettings:
    """Return the settings of an identity that was read from JSON.

    The identity does not contain `flow` and `checkpoint_s`; None stands for their defaults.
    """
    preset = TransformSettings if per_object else StreamSettings
    rows, nbytes, delay_ms = identity["batch"]
    batch = {"batch_rows_max": rows, "batch_bytes_max": nbytes, "batch_delay_ms": delay_ms}
    output = OutputSettings(**identity["output"])
    return preset(
        data_type=identity["data_type"],
        read=_with_tuples(ReadOptions, identity["read"]),
        mapping=_with_tuples(MappingOptions, identity["mapping"]),
        flow=FlowSettings(**{**(flow or {}), **batch}),
        output=output if checkpoint_s is None else replace(output, checkpoint_s=checkpoint_s),
        failures=FailurePolicy(on_error=identity["on_error"]),
        tasks=TaskSettings(*identity["tasks"]),
    )


def _with_tuples(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return the settings with tuples in place of JSON's lists."""
    lists = {k: tuple(cast("list[Any]", v)) for k, v in values.items() if isinstance(v, list)}
    return kind(**{**values, **lists})


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} {value!r}: choose one of {', '.join(known)}")


def _check_least(settings: Any, **least: int) -> None:
    for name, limit in least.items():
        if getattr(settings, name) < limit:
            raise ConfigError(f"{name} must be at least {limit}, not {getattr(settings, name)}")
