"""What a stream may be told; every bound has a unit in its name and a default."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from headrace.core.errors import ConfigError
from headrace.formats.json_path import compile_path
from headrace.formats.json_path_grammar import SliceEnd
from headrace.formats.read import ReadOptions

MIB = 1 << 20

BY_OBJECT: Final = "@object"
"""Every object is a sequence; its URI is the sequence's id."""
BY_MEMBER: Final = "@member"
"""Every member of an archive is a sequence, and every object that is no archive."""
BY_PLACE: Final = (BY_OBJECT, BY_MEMBER)
"""What `MappingOptions.sequence` may be beside a column."""


@dataclass(frozen=True, slots=True)
class MappingOptions:
    """How records become the model's inputs.

    `columns` are names (of the header, or of JSON fields) or indices from 0; empty takes all that the model's
    inputs ask for. `text_column` feeds one column or field, as text, to the model's one input. `image_scale`
    multiplies pixels when the model wants floats (1/255 by default).

    `input_filter` is a JSONPath (`headrace.formats.json_path`) that selects what of a CSV or JSON record the model is
    given; `columns` and `text_column` are then looked up in that. `slice_end` says what its slices' second numbers
    mean. With `whole_records` a model whose one input is text is given CSV and JSON records as they stand, or what the
    filter selects of them. Raises ConfigError for a path that is not supported.

    `sequence` is for models with a `step`: the column or field of a record that says to which sequence it belongs, or
    "@object" or "@member", where a whole object, or a member of an archive, is one. Without it every record is a sequence by
    itself. `sequence_end` is a column or field that is true (or 1) in a sequence's last record; what comes after it with
    the same id is a new one. Neither column is given to a model that is to be given all columns.
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
        """Refuse a filter that does not compile, and sequences that cannot be."""
        compile_path(self.input_filter, slice_end=self.slice_end)
        if isinstance(self.sequence, str) and self.sequence[:1] in ("", "@") and not self.by_place:
            raise ConfigError(
                f"--sequence {self.sequence!r}: name a column or field (by its index, where its name begins with @), "
                f"or one of {', '.join(BY_PLACE)}"
            )
        if self.sequence_end is not None and (self.sequence is None or self.by_place):
            why = f"{self.sequence} ends where it ends" if self.by_place else "there is no --sequence"
            raise ConfigError(f"--sequence-end is for sequences that a column tells of, and {why}")

    @property
    def by_place(self) -> bool:
        """Whether it is a record's place that tells its sequence."""
        return self.sequence in BY_PLACE

    def identity(self) -> dict[str, Any]:
        """All of it, but for what came later and says nothing: so runs from before go on."""
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
    """Bounds of the way from source to outcome.

    A batch closes at `batch_rows_max` records (None: the model's `max_batch_rows`), at `batch_bytes_max`, or
    when its first record has waited `batch_delay_ms` (None: never, so that batches, and with them the last bits
    of predictions, depend on the source alone). `sequences_live_max` sequences may be unfinished at once, in the order
    of the source (None: as many as the model says); a run in which more are ends with LimitError, and can be resumed with
    another bound.
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
        """Refuse bounds that are not positive."""
        for name, value in asdict(self).items():
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be more than 0, not {value}")


OutputFormat = Literal["csv", "jsonl", "parquet"]
Join = Literal["none", "input"]


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """What is written, and how often.

    A part is published when it holds `part_bytes_max` or more (or as many rows as `part_rows_max`).
    `checkpoint_s` is the most work, in seconds, that a kill can cost; what the sink holds unpublished is one part.
    """

    format: OutputFormat = "csv"
    join: Join = "none"
    header: bool | None = None
    """A header line in each CSV part; None: only when the input's header was used for names."""
    part_bytes_max: int = 16 * MIB
    part_rows_max: int = 10_000_000
    checkpoint_s: float = 5.0

    def __post_init__(self) -> None:
        """Refuse bounds that are not positive; checkpoints may come as often as batches."""
        for name, least in (("part_bytes_max", 1), ("part_rows_max", 1), ("checkpoint_s", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Everything that shapes a stream's predictions and output, in one value."""

    read: ReadOptions = field(default_factory=ReadOptions)
    mapping: MappingOptions = field(default_factory=MappingOptions)
    flow: FlowSettings = field(default_factory=FlowSettings)
    output: OutputSettings = field(default_factory=OutputSettings)

    def identity(self) -> dict[str, Any]:
        """What must not differ between a run and its resumption: all but prefetch and window bounds."""
        flow = self.flow
        output = asdict(self.output)
        del output["checkpoint_s"]
        return {
            "read": asdict(self.read),
            "mapping": self.mapping.identity(),
            "batch": [flow.batch_rows_max, flow.batch_bytes_max, flow.batch_delay_ms],
            "output": output,
        }
