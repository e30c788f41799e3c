"""The settings of a run, with a preset for streams and one for transforms.

Every limit has a default and a unit in its name.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final, Literal, cast

from headrace.core.errors import ConfigError
from headrace.core.settings import Setting, check
from headrace.formats.json_path import SliceEnd, compile_path
from headrace.formats.read_options import V2, ReadOptions
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.output_settings import PART_SUFFIXES, SLICE_END_HELP, OutputSettings

MIB = 1 << 20

DataType = Literal["auto", "prefix", "manifest"]

SAMPLED: Final = ("infer", "strict")
"""The values of `RunSettings.schema` that are not files."""

BY_OBJECT: Final = "@object"
"""Each object is a sequence with its URI as the id."""
BY_MEMBER: Final = "@member"
"""Each archive member is a sequence, and each object that is not an archive."""
BY_PLACE: Final = (BY_OBJECT, BY_MEMBER)
"""The values of `MappingOptions.sequence` that are not columns."""
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,15})?|\.\d{1,15})\s*(%?)", re.ASCII)
_COLUMN: Final = "a non-empty text, or a whole number of 0 or more"


def _is_column(column: str | int) -> bool:
    return column >= 0 if isinstance(column, int) else bool(column)


def _checked_column(column: str | int) -> str | int:
    if not _is_column(column):
        raise ConfigError(f"must be {_COLUMN}, not {column!r}")
    return column


def _checked_columns(columns: tuple[str | int, ...]) -> tuple[str | int, ...]:
    if len({type(column) for column in columns}) > 1 or not all(map(_is_column, columns)):
        raise ConfigError(f"must be a list of names, or one of numbers from 0, not {list(columns)!r:.40}")
    return columns


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

    columns: Annotated[
        tuple[str | int, ...],
        Setting(
            "Columns or fields of the filtered record for the model, by name or by index (0-9).",
            metavar="A,B,…",
            expected="a list of names, or one of numbers from 0",
            parse=_checked_columns,
        ),
    ] = ()
    text_column: Annotated[
        str | int | None,
        Setting(
            "Column or field of the filtered record for the model, as text.",
            metavar="NAME",
            expected=_COLUMN,
            parse=_checked_column,
        ),
    ] = None
    image_scale: Annotated[
        float,
        Setting("Factor that is applied to pixel values (0-255) for float inputs.", above=0, default="1/255"),
    ] = 1 / 255
    input_filter: Annotated[
        str,
        Setting("JSONPath of the part of a record for the model, as in '$[1:]'.", metavar="PATH"),
    ] = "$"
    slice_end: Annotated[SliceEnd, Setting(SLICE_END_HELP)] = "exclusive"
    whole_records: Annotated[
        bool,
        Setting("Pass whole CSV and JSON records to a model whose only input is text."),
    ] = False
    sequence: Annotated[
        str | int | None,
        Setting(
            "Column or field with the sequence id, for models with a step method; or @object or @member, "
            "for one sequence per object or archive member.",
            default="each record is a sequence",
            metavar="COLUMN",
            expected=_COLUMN,
        ),
    ] = None
    sequence_end: Annotated[
        str | int | None,
        Setting(
            "Column or field that is true, or 1, in the last record of a sequence.",
            metavar="COLUMN",
            expected=_COLUMN,
        ),
    ] = None

    def __post_init__(self) -> None:
        """Check the filter and the sequence settings."""
        check(self)
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

    batch_rows_max: Annotated[
        int | None,
        Setting(
            "Batch size in records.", old_names=("batch_rows",), least=1, default="the model's max_batch_rows"
        ),
    ] = None
    batch_bytes_max: Annotated[int, Setting("Batch size in bytes.", old_names=("batch_bytes",), least=1)] = (
        64 * MIB
    )
    batch_delay_ms: Annotated[
        float | None,
        Setting("Longest wait of a batch's first record in milliseconds.", above=0, default="no limit"),
    ] = None
    prefetch_bytes_max: Annotated[
        int, Setting("Size of the read-ahead.", old_names=("prefetch_bytes",), least=1)
    ] = 32 * MIB
    prefetch_threads: Annotated[
        int, Setting("Number of threads that read ahead.", least=1, python_only=True)
    ] = 4
    range_bytes: Annotated[int, Setting("Size of one ranged read.", least=1, python_only=True)] = 8 * MIB
    blocks_bytes_max: Annotated[int, Setting("Size of one block of records.", least=1, python_only=True)] = (
        4 * MIB
    )
    window_bytes_max: Annotated[
        int, Setting("Size of the records that wait for predictions.", least=1, python_only=True)
    ] = 16 * MIB
    sequences_live_max: Annotated[
        int | None,
        Setting("Limit of unfinished sequences.", least=1, default="the model's sequences.live_max"),
    ] = None

    def __post_init__(self) -> None:
        check(self)


def parse_share(value: str | float) -> float:
    """Return the share of ``"1%"``, ``"0.01"`` or 0.01. Raise ConfigError for any other text."""
    if not isinstance(value, str):
        return float(value)
    match = _SHARE.fullmatch(value.strip())
    if match is None:
        raise ConfigError(f"{value!r:.40} is not a share: write it as 1% or 0.01")
    return float(match[1]) / (100 if match[2] else 1)


@dataclass(frozen=True, slots=True)
class SubsetSettings:
    """The records that a run reads, to try a model before a long run.

    With `sample`, each record is chosen with this probability, by a hash of `sample_seed` and of the
    record's place: its object's URI, its archive member, and its byte or number. The choice does not depend
    on workers, tasks or resumptions. Records that are not chosen are not counted. With `limit`, a
    run scores the first `limit` (chosen) records of the source, in its order.
    """

    limit: Annotated[
        int | None, Setting("Number of records to score, the first of the source.", least=1, default="all")
    ] = None
    sample: Annotated[
        float | None,
        Setting(
            "Share of records to score, chosen by a hash of their places, as in 1% or 0.01.",
            above=0,
            most=1,
            default="all",
            metavar="P%",
            expected='a share of records above 0 and at most 1, such as 0.01 or "1%"',
            written=str | float,
            parse=parse_share,
        ),
    ] = None
    sample_seed: Annotated[int, Setting("Number that selects one of many samples.", least=0)] = 0

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The size of tasks. A worker runs a task as a unit; a finished task is never run again.

    Batches do not cross tasks. The output therefore depends on the source and these settings, not
    on the number or the fate of workers.

    Objects are grouped into tasks of `task_bytes`. Uncompressed text objects of more than twice this
    size are split into ranges of about this size.
    """

    task_bytes: Annotated[
        int, Setting("Size of a worker's task; larger text objects are split.", least=1)
    ] = 64 * MIB
    task_objects_max: Annotated[int, Setting("Limit of objects of a task.", name="task_objects", least=1)] = (
        10_000
    )

    def __post_init__(self) -> None:
        check(self)


SETTINGS_GROUPS: Final = (
    ReadOptions,
    MappingOptions,
    FlowSettings,
    OutputSettings,
    FailurePolicy,
    SubsetSettings,
    TaskSettings,
)
"""The classes of the settings tree, in the order of help pages."""
STREAM_SETTINGS: Final = frozenset(
    {"batch_delay_ms", "sequence", "sequence_end", "sequences_live_max", "part_bytes_max", "part_rows_max"}
)
"""Names of settings that streams alone have."""


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
    subset: SubsetSettings = field(default_factory=SubsetSettings)
    tasks: TaskSettings = field(default_factory=TaskSettings)
    data_type: Annotated[
        DataType,
        Setting("Meaning of SOURCE; auto chooses by its form, prefix is a string prefix."),
    ] = "auto"
    schema: Annotated[
        str,
        Setting(
            "Schema of the records: infer (by majority of a sample), strict (the same; the run is refused "
            "if a sampled record does not decode), or a file, as headrace inspect --save-schema writes it.",
            metavar="infer|strict|FILE",
        ),
    ] = "infer"

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that V2 requests and responses do not support."""
        check(self)
        if self.read.format == V2:
            if self.output.format == "auto":
                object.__setattr__(self, "output", replace(self.output, format=V2))
            _check_requests(self.mapping, self.output)
        if self.output.format == V2:
            _check_responses(self.read, self.output)

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
            "on_error": self.failures.on_error or "record",
            "subset": asdict(self.subset),
            "tasks": [self.tasks.task_bytes, self.tasks.task_objects_max],
        }


def _check_requests(mapping: MappingOptions, output: OutputSettings) -> None:
    """Raise ConfigError for options that choose among the columns of records."""
    chosen = {
        "columns": bool(mapping.columns),
        "text_column": mapping.text_column is not None,
        "input_filter": mapping.input_filter != "$",
        "sequence": mapping.sequence is not None,
        "partition_by": bool(output.partition_by),
    }
    for name, is_set in chosen.items():
        if is_set:
            raise ConfigError(
                f"{name} has no meaning for v2 records: a request names its inputs, and its sequence in its "
                f"parameters. Remove {name}"
            )


def _check_responses(read: ReadOptions, output: OutputSettings) -> None:
    """Raise ConfigError for an output of V2 responses that the records or other settings do not allow."""
    if read.format != V2:
        raise ConfigError(
            "the output format v2 has a response for each V2 request, but the records are not read as "
            "requests: set the format v2 (of a transform: content_type v2), or another output format"
        )
    if output.join == "input" or output.output_filter != "$":
        raise ConfigError(
            "a V2 response has no place for its request, and no filter applies to it: remove join input and "
            "output_filter (the id joins both; join key and position add parameters), or choose the output "
            "format jsonl"
        )


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
        without_lines = self.output.format == "text" and self.output.assemble == "none"
        if without_lines or self.output.format not in PART_SUFFIXES:
            raise ConfigError(
                f"a stream writes one record per line, not {self.output.format}: choose the format csv, "
                "jsonl, parquet or arrow, or text with assemble line"
            )
        if self.subset.sample is not None and self.mapping.sequence is not None:
            raise ConfigError(
                "sample leaves out records of a sequence, whose state would differ: remove one of sample "
                "and sequence, or use limit"
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
    stops_broken_model: bool = False,
) -> RunSettings:
    """Return the settings of an identity that was read from JSON.

    The identity does not contain `flow` and `checkpoint_s`; None stands for their defaults. Nor
    does it contain `stops_broken_model`, a value of the `FailurePolicy`.
    """
    preset = TransformSettings if per_object else StreamSettings
    rows, nbytes, delay_ms = identity["batch"]
    batch = {"batch_rows_max": rows, "batch_bytes_max": nbytes, "batch_delay_ms": delay_ms}
    output = _with_tuples(OutputSettings, identity["output"])
    return preset(
        data_type=identity["data_type"],
        read=_with_tuples(ReadOptions, identity["read"]),
        mapping=_with_tuples(MappingOptions, identity["mapping"]),
        flow=FlowSettings(**{**(flow or {}), **batch}),
        output=output if checkpoint_s is None else replace(output, checkpoint_s=checkpoint_s),
        failures=FailurePolicy(on_error=None if stops_broken_model else identity["on_error"]),
        subset=SubsetSettings(**identity["subset"]),
        tasks=TaskSettings(*identity["tasks"]),
    )


def _with_tuples(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return the settings with tuples in place of JSON's lists."""
    lists = {k: tuple(cast("list[Any]", v)) for k, v in values.items() if isinstance(v, list)}
    return kind(**{**values, **lists})
