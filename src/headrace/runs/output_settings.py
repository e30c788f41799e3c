"""The settings of a run's output: its format, its columns, and the size of its parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Final, Literal

from headrace.core.errors import ConfigError
from headrace.core.settings import Setting, check
from headrace.formats.json_path import SliceEnd, compile_path

EncodedFormat = Literal["csv", "jsonl", "json", "v2", "text", "parquet", "arrow"]
OutputFormat = Literal["auto", EncodedFormat]
Assemble = Literal["line", "none"]
Join = Literal["none", "input", "key", "position"]

PART_SUFFIXES: Final[Mapping[OutputFormat, str]] = {
    "auto": "csv",
    "csv": "csv",
    "jsonl": "jsonl",
    "v2": "jsonl",
    "text": "txt",
    "parquet": "parquet",
    "arrow": "arrow",
}
"""The end of a part's name by its format; `StreamSettings` refuses a format without one."""
TABLES: Final[tuple[OutputFormat, ...]] = ("parquet", "arrow")
"""Formats with a footer: an output must be written by one process from its begin to its end."""
ROWS_OF_CELLS: Final[tuple[OutputFormat, ...]] = ("csv",)
"""Formats of text with columns, a delimiter and an optional header."""
SLICE_END_HELP: Final = "End of JSONPath slices: $[1:4] without (exclusive) or with (inclusive) column 4."


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """The format of the output, and the frequency of commits.

    The formats are "csv"; "jsonl", one object per record; "json", the same, separated as `assemble`
    says; "v2", the responses to V2 requests; "text", the model's single text output, unchanged;
    "parquet"; and "arrow", an IPC file. A stream publishes a part when it has `part_bytes_max` or
    `part_rows_max`. A `checkpoint_s` of 0 makes a checkpoint at every batch.

    `keep` lists columns of the record that are written before the outputs, also in CSV and JSON, where they
    replace the record of ``join="input"``. `drop` and `rename` apply to outputs, and to columns of the record
    that are written. `partition_by` lists columns of the record, or outputs, whose values are the names of
    folders; they are not among the columns that are written.
    """

    format: Annotated[
        OutputFormat,
        Setting(
            "Format of the predictions; auto is v2 for v2 requests, jsonl for JSON records of a transform, "
            "else csv.",
            name="output_format",
        ),
    ] = "auto"
    join: Annotated[
        Join,
        Setting(
            "Data beside a prediction: none, the input record (of media and whole objects, the key), its key "
            "(object and member), or its position (object, member, record and line)."
        ),
    ] = "none"
    keep: Annotated[
        tuple[str, ...],
        Setting("Columns or fields of the record to write before the predictions.", metavar="A,B,…"),
    ] = ()
    drop: Annotated[
        tuple[str, ...],
        Setting("Outputs, or columns of the record, that are not written.", metavar="A,B,…"),
    ] = ()
    rename: Annotated[
        tuple[str, ...],
        Setting("New names of outputs, or of columns of the record.", metavar="OLD=NEW,…"),
    ] = ()
    partition_by: Annotated[
        tuple[str, ...],
        Setting(
            "Columns of the record, or outputs, by whose values the output is divided into folders "
            "(DEST/day=2026-11-27/…).",
            metavar="A,B,…",
        ),
    ] = ()
    output_filter: Annotated[
        str,
        Setting("JSONPath of the part of a (joined) record to write, as in '$[0,-1]'.", metavar="PATH"),
    ] = "$"
    slice_end: Annotated[SliceEnd, Setting(SLICE_END_HELP)] = "exclusive"
    assemble: Annotated[
        Assemble,
        Setting("Separator after each JSON or text record: a newline (line) or nothing (none)."),
    ] = "line"
    header: Annotated[
        bool | None,
        Setting("Write a header line in CSV outputs.", name="output_header", default="with --header names"),
    ] = None
    part_bytes_max: Annotated[
        int, Setting("Approximate size of a part.", old_names=("part_bytes",), least=1)
    ] = 16 << 20
    part_rows_max: Annotated[int, Setting("Limit of rows of a part.", least=1)] = 10_000_000
    fixed_lists: Annotated[
        bool,
        Setting(
            "Give arrays in Parquet a fixed size. Readers of Delta Lake and Iceberg need lists of any size.",
            python_only=True,
        ),
    ] = True
    checkpoint_s: Annotated[
        float,
        Setting("Checkpoint interval in seconds: the most work that a kill can lose.", least=0, most=inf),
    ] = 5.0

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown word, an invalid filter or name, or a limit that is too small."""
        check(self)
        compile_path(self.output_filter, slice_end=self.slice_end)
        if self.format in TABLES and self.output_filter != "$":
            raise ConfigError(
                f"output_filter {self.output_filter} needs CSV or JSON records, but the format is "
                f"{self.format}: remove the filter, and select columns when you read the table"
            )
        self._check_names()

    @property
    def is_written_whole(self) -> bool:
        """True if one process must write an output from its begin to its end, without a checkpoint."""
        return self.format in TABLES or bool(self.partition_by)

    @property
    def new_names(self) -> dict[str, str]:
        """The new names of `rename` by the old ones."""
        return dict(text.split("=", 1) for text in self.rename)

    def _check_names(self) -> None:
        for text in self.rename:
            old, _, new = text.partition("=")
            if not old or not new:
                raise ConfigError(f"rename {text!r:.40} is not a pair of names: write it as OLD=NEW")
        old_names = [text.partition("=")[0] for text in self.rename]
        lists = {"keep": self.keep, "drop": self.drop, "rename": old_names, "partition_by": self.partition_by}
        for setting, names in lists.items():
            if len(set(names)) < len(names) or "" in names:
                raise ConfigError(f"{setting} has a name twice, or an empty name: {', '.join(names)}")
        both = [name for name in self.drop if name in (*self.keep, *old_names, *self.partition_by)]
        if both:
            raise ConfigError(
                f"drop removes {both[0]!r}, which keep, rename or partition_by names: remove one of them"
            )
        if self.format == "text" and (self.keep or self.drop or self.rename):
            raise ConfigError(
                "keep, drop and rename need columns, but the format is text: choose csv, jsonl, parquet or "
                "arrow"
            )
