"""What a batch transform may be told; every bound has a unit in its name and a default."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from headrace.core.errors import ConfigError
from headrace.formats.json_path import SliceEnd, compile_path
from headrace.formats.read import ReadOptions
from headrace.pipeline.settings import MIB, FlowSettings, MappingOptions

DataType = Literal["auto", "prefix", "manifest"]
Accept = Literal["auto", "csv", "jsonl", "json", "text", "parquet", "arrow"]
Assemble = Literal["line", "none"]
Join = Literal["none", "input"]
OnError = Literal["record", "object", "job"]

TABLES: tuple[Accept, ...] = ("parquet", "arrow")
"""What is written with a footer, so that an object's output comes from one task."""


@dataclass(frozen=True, slots=True)
class TransformOutput:
    """What is written for a record, and what stands between records.

    `accept`: csv; jsonl (an object a record); json (the same, where `assemble` says what follows a record); text (a
    model's one text output as it stands); parquet; arrow (an IPC file). "auto" is jsonl for records that are JSON, and
    csv for others. `join` "input" puts the prediction beside its record; `output_filter` is a JSONPath that says what of
    that is kept, and `slice_end` how its slices are read. `header`: a line of names first in CSV; None writes one where
    the input's header gave names.
    """

    accept: Accept = "auto"
    assemble: Assemble = "line"
    join: Join = "none"
    output_filter: str = "$"
    slice_end: SliceEnd = "exclusive"
    header: bool | None = None

    def __post_init__(self) -> None:
        """Refuse words that are not known, and a filter that is no path."""
        for what, known in (("accept", Accept), ("assemble", Assemble), ("join", Join)):
            _check_word(what, getattr(self, what), get_args(known))
        compile_path(self.output_filter, slice_end=self.slice_end)
        if self.accept in TABLES and self.output_filter != "$":
            raise ConfigError(
                f"output_filter {self.output_filter} selects of CSV or JSON records, and accept is {self.accept}: "
                "leave the filter out, and choose columns where the table is read"
            )


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What a record costs that cannot be predicted.

    `on_error` "record": itself; it is written to ``KEY.out.failed``. "object": the output of its whole object, as the
    vendor has it. "job": the run, which stops. A run with more failed records than `failed_rows_max`, or a larger share
    of all records than `failed_share_max` (looked at once `SHARE_ROWS_MIN` records have come, and at the end), stops too.
    """

    on_error: OnError = "record"
    failed_rows_max: int | None = None
    failed_share_max: float | None = None

    def __post_init__(self) -> None:
        """Refuse words and bounds that cannot be."""
        _check_word("on_error", self.on_error, get_args(OnError))
        if self.failed_rows_max is not None and self.failed_rows_max < 0:
            raise ConfigError(f"failed_rows_max must be at least 0, not {self.failed_rows_max}")
        if self.failed_share_max is not None and not 0 <= self.failed_share_max <= 1:
            raise ConfigError(f"failed_share_max must be from 0 to 1, not {self.failed_share_max}")


SHARE_ROWS_MIN = 1000
"""Before so many records have come, a share of failed ones says little."""


CHECKPOINT_S = 5.0


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How the work is cut. A task is what one worker does in one go, and what a finished run never does again.

    Objects are put together until a task has `task_bytes` or `task_objects_max` objects; uncompressed text objects of
    more than twice `task_bytes` are cut into ranges of about that. Batches do not cross tasks; so what is written
    depends on the source and these settings, and never on how many workers there are or what became of them.
    `checkpoint_s` is the most work, in seconds, that a kill can cost.
    """

    task_bytes: int = 64 * MIB
    task_objects_max: int = 10_000
    checkpoint_s: float = CHECKPOINT_S

    def __post_init__(self) -> None:
        """Refuse bounds that leave no room."""
        for name, least in (("task_bytes", 1), ("task_objects_max", 1), ("checkpoint_s", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class TransformSettings:
    """Everything that shapes a batch transform's output, in one value."""

    data_type: DataType = "auto"
    read: ReadOptions = field(default_factory=ReadOptions)
    mapping: MappingOptions = field(default_factory=MappingOptions)
    flow: FlowSettings = field(default_factory=FlowSettings)
    output: TransformOutput = field(default_factory=TransformOutput)
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    tasks: TaskSettings = field(default_factory=TaskSettings)

    def __post_init__(self) -> None:
        """Refuse what cannot be together."""
        _check_word("data_type", self.data_type, get_args(DataType))
        if self.flow.batch_delay_ms is not None:
            raise ConfigError(
                "batch_delay_ms has no meaning here: batches close by rows and bytes, so that a resumed transform "
                "writes the same bytes"
            )
        if self.mapping.sequence is not None:
            raise ConfigError(
                "a transform cuts its source into tasks that are done in any order, so it has no sequences: read them with "
                "headrace stream, or headrace.run"
            )

    def identity(self) -> dict[str, Any]:
        """What must not differ between a transform and its resumption: all that decides what is written."""
        return {
            "data_type": self.data_type,
            "read": asdict(self.read),
            "mapping": self.mapping.identity(),
            "batch": [self.flow.batch_rows_max, self.flow.batch_bytes_max],
            "output": asdict(self.output),
            "on_error": self.failures.on_error,
            "tasks": [self.tasks.task_bytes, self.tasks.task_objects_max],
        }


def settings_of(
    identity: Mapping[str, Any], *, flow: Mapping[str, Any] | None = None, checkpoint_s: float | None = None
) -> TransformSettings:
    """The settings that `TransformSettings.identity` told of, back from JSON; what it does not tell is as given, or by default."""
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
    """JSON has lists where settings have tuples."""
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})  # pyright: ignore[reportUnknownArgumentType]


def _check_word(what: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ConfigError(f"{what} {word!r}: choose one of {', '.join(known)}")
