"""The settings of a stream. Every limit has a default and a unit in its name."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from headrace.core.errors import ConfigError
from headrace.formats.json_path import compile_path
from headrace.formats.json_path_grammar import SliceEnd
from headrace.formats.read import ReadOptions

MIB = 1 << 20

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

    def identity(self) -> dict[str, Any]:
        """Return the options for the run's identity, without newer options at their defaults.

        So runs that began with an earlier version can be resumed.
        """
        options = asdict(self)
        if self.input_filter == "$":
            del options["input_filter"], options["slice_end"]
        if not self.whole_records:
            del options["whole_records"]
        for name in ("sequence", "sequence_end"):
            if options[name] is None:
                del options[name]
        return options


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


OutputFormat = Literal["csv", "jsonl", "parquet"]
Join = Literal["none", "input"]


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """The format of the output, and the frequency of commits.

    A part is published when it reaches `part_bytes_max` bytes or `part_rows_max` rows. A kill costs
    at most `checkpoint_s` seconds of work. The sink holds at most one unpublished part.
    """

    format: OutputFormat = "csv"
    join: Join = "none"
    header: bool | None = None
    """A header line in each CSV part; None writes it only if a header of the input named the columns."""
    part_bytes_max: int = 16 * MIB
    part_rows_max: int = 10_000_000
    checkpoint_s: float = 5.0

    def __post_init__(self) -> None:
        """Check the limits. A `checkpoint_s` of 0 makes a checkpoint at every batch."""
        for name, least in (("part_bytes_max", 1), ("part_rows_max", 1), ("checkpoint_s", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """All settings that shape the predictions and the output of a stream."""

    read: ReadOptions = field(default_factory=ReadOptions)
    mapping: MappingOptions = field(default_factory=MappingOptions)
    flow: FlowSettings = field(default_factory=FlowSettings)
    output: OutputSettings = field(default_factory=OutputSettings)

    def identity(self) -> dict[str, Any]:
        """Return the settings that a resumption must repeat: all except prefetch and window limits."""
        flow = self.flow
        output = asdict(self.output)
        del output["checkpoint_s"]
        return {
            "read": asdict(self.read),
            "mapping": self.mapping.identity(),
            "batch": [flow.batch_rows_max, flow.batch_bytes_max, flow.batch_delay_ms],
            "output": output,
        }
