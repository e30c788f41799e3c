"""The settings of a batch transform. Every limit has its unit in its name, and a default."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast, get_args

from headrace.core.errors import ConfigError
from headrace.formats.json_path import SliceEnd, compile_path
from headrace.formats.read import ReadOptions
from headrace.runs.stream_settings import MIB, FlowSettings, MappingOptions

DataType = Literal["auto", "prefix", "manifest"]
Accept = Literal["auto", "csv", "jsonl", "json", "text", "parquet", "arrow"]
Assemble = Literal["line", "none"]
Join = Literal["none", "input"]
OnError = Literal["record", "object", "job"]

TABLES: tuple[Accept, ...] = ("parquet", "arrow")
"""Formats with a footer: an object's output must come from one task."""


@dataclass(frozen=True, slots=True)
class TransformOutput:
    """The format of the output.

    Attributes:
        accept: "csv". "jsonl": one object per record. "json": the same, separated as `assemble` says.
            "text": the model's single text output, unchanged. "parquet". "arrow": an IPC file. "auto":
            jsonl for JSON records, else csv.
        assemble: The separator of records: "line" or "none".
        join: "input" puts the prediction next to its record.
        output_filter: A JSONPath that selects parts of the joined record or prediction.
        slice_end: The meaning of the end of a JSONPath slice.
        header: Write a line of column names first, for CSV. None: if the input's header gave names.
    """

    accept: Accept = "auto"
    assemble: Assemble = "line"
    join: Join = "none"
    output_filter: str = "$"
    slice_end: SliceEnd = "exclusive"
    header: bool | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown word or an invalid filter."""
        for name, known in (("accept", Accept), ("assemble", Assemble), ("join", Join)):
            _check_choice(name, getattr(self, name), get_args(known))
        compile_path(self.output_filter, slice_end=self.slice_end)
        if self.accept in TABLES and self.output_filter != "$":
            raise ConfigError(
                f"output_filter {self.output_filter} needs CSV or JSON records, but accept is {self.accept}: "
                "remove the filter, and select columns when you read the table"
            )


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The consequence of a record that cannot be predicted.

    Attributes:
        on_error: "record": the record is written to ``KEY.out.failed``. "object": its whole object gets
            no output, as with SageMaker. "job": the run stops.
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


SHARE_ROWS_MIN = 1000
"""The number of records from which on the share of failures is checked."""


CHECKPOINT_S = 5.0


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The size of tasks. A worker runs a task as a unit; a finished task is never run again.

    Batches do not cross tasks. The output therefore depends on the source and these settings, not
    on the number or the fate of workers.

    Attributes:
        task_bytes: Objects are grouped into tasks of this size. Uncompressed text objects of more than
            twice this size are split into ranges of about this size.
        task_objects_max: The maximal number of objects of a task.
        checkpoint_s: The maximal work that a crash can lose, in seconds.
    """

    task_bytes: int = 64 * MIB
    task_objects_max: int = 10_000
    checkpoint_s: float = CHECKPOINT_S

    def __post_init__(self) -> None:
        """Raise ConfigError for a limit that is too small."""
        for name, least in (("task_bytes", 1), ("task_objects_max", 1), ("checkpoint_s", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class TransformSettings:
    """All settings that shape the output of a batch transform."""

    data_type: DataType = "auto"
    read: ReadOptions = field(default_factory=ReadOptions)
    mapping: MappingOptions = field(default_factory=MappingOptions)
    flow: FlowSettings = field(default_factory=FlowSettings)
    output: TransformOutput = field(default_factory=TransformOutput)
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    tasks: TaskSettings = field(default_factory=TaskSettings)

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown word, and for settings that transforms do not support."""
        _check_choice("data_type", self.data_type, get_args(DataType))
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

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the output; they must be equal in a resumption."""
        return {
            "data_type": self.data_type,
            "read": asdict(self.read),
            "mapping": self.mapping.identity(),
            "batch": [self.flow.batch_rows_max, self.flow.batch_bytes_max],
            "output": asdict(self.output),
            "on_error": self.failures.on_error,
            "tasks": [self.tasks.task_bytes, self.tasks.task_objects_max],
        }


def settings_from_identity(
    identity: Mapping[str, Any], *, flow: Mapping[str, Any] | None = None, checkpoint_s: float | None = None
) -> TransformSettings:
    """Return the settings of an identity that was read from JSON.

    The identity does not contain `flow` and `checkpoint_s`; None stands for their defaults.
    """
    rows, nbytes = identity["batch"]
    task_bytes, task_objects_max = identity["tasks"]
    return TransformSettings(
        data_type=identity["data_type"],
        read=_with_tuples(ReadOptions, identity["read"]),
        mapping=_with_tuples(MappingOptions, identity["mapping"]),
        flow=FlowSettings(**{**(flow or {}), "batch_rows_max": rows, "batch_bytes_max": nbytes}),
        output=TransformOutput(**identity["output"]),
        failures=FailurePolicy(on_error=identity["on_error"]),
        tasks=TaskSettings(
            task_bytes, task_objects_max, CHECKPOINT_S if checkpoint_s is None else checkpoint_s
        ),
    )


def _with_tuples(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return the settings with tuples in place of JSON's lists."""
    lists = {k: tuple(cast("list[Any]", v)) for k, v in values.items() if isinstance(v, list)}
    return kind(**{**values, **lists})


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} {value!r}: choose one of {', '.join(known)}")
