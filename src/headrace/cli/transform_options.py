"""What ``headrace transform`` can be told, and the spec that options and a spec file make together.

Options are the words of a spec file's ``headrace`` table, so that both mean the same; where both say a thing, the
command line counts.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

import click

from headrace.app.streaming import PredictorOptions
from headrace.cli.options import (
    MEDIA_OPTIONS,
    options,
    parse_bytes,
    parse_columns,
    parse_delimiter,
)
from headrace.core.errors import ConfigError
from headrace.formats.json_path_grammar import SliceEnd
from headrace.transforms.document import read_document
from headrace.transforms.media_types import COMPRESSIONS, SPLITS
from headrace.transforms.settings import Accept, Assemble, DataType, Join, OnError
from headrace.transforms.spec import OWN_TABLE, TransformSpec, spec_of

_COUNT = click.IntRange(min=1)
_POSITIVE = click.FloatRange(min=0, min_open=True)
SPEC_BYTES_MAX: Final = 4 << 20

INPUT_OPTIONS = options(
    click.option("--data-type", type=click.Choice(get_args(DataType)), help="What SOURCE is: auto goes by its form; prefix is a string prefix.  [default: auto]"),
    click.option("--content-type", metavar="TYPE", help="What objects hold: text/csv, application/json, …, or csv, json, jsonl, text, image, audio, video.  [default: by their names]"),
    click.option("--split", type=click.Choice(SPLITS), help="Where an object's records are cut; none makes it one record.  [default: by content type or name]"),
    click.option("--compression", type=click.Choice(COMPRESSIONS), help="How objects are compressed.  [default: by their names]"),
    click.option("--members", multiple=True, metavar="GLOB", help="Archive members to read; may be repeated."),
    click.option("--header", type=click.Choice(["none", "drop", "names"]), help="A CSV file's first record: a record, a header to drop, or the columns' names.  [default: none]"),
    click.option("--delimiter", callback=parse_delimiter, metavar="C", help=r"Of CSV cells; \t is a tab.  [default: , or tab for .tsv]"),
    click.option("--input-filter", metavar="PATH", help="JSONPath: what of a record the model is given, as in '$[1:]'.  [default: $]"),
    click.option("--columns", callback=parse_columns, metavar="A,B,…", help="Columns or fields of that, by name or index (0-9)."),
    click.option("--text-column", metavar="NAME", help="One column or field of that, as text."),
    click.option("--record-bytes-max", callback=parse_bytes, metavar="SIZE", help="A longer record fails instead of filling the memory.  [default: 16MiB]"),
    MEDIA_OPTIONS,
)  # fmt: skip

OUTPUT_OPTIONS = options(
    click.option("--accept", type=click.Choice(get_args(Accept)), help="What is written; auto is jsonl for JSON records, else csv.  [default: auto]"),
    click.option("--assemble", type=click.Choice(get_args(Assemble)), help="A newline after each JSON or text record, or nothing.  [default: line]"),
    click.option("--join", type=click.Choice(get_args(Join)), help="Keep the record beside its prediction.  [default: none]"),
    click.option("--output-filter", metavar="PATH", help="JSONPath: what of the (joined) record is written, as in '$[0,-1]'.  [default: $]"),
    click.option("--slice-end", type=click.Choice(get_args(SliceEnd)), help="Whether $[1:4] ends before or with column 4.  [default: exclusive]"),
    click.option("--output-header/--no-output-header", default=None, help="A header in CSV outputs.  [default: where --header names]"),
)  # fmt: skip

FAILURE_OPTIONS = options(
    click.option("--on-error", type=click.Choice(get_args(OnError)), help="What a failed record costs: itself, its object's output, or the run.  [default: record]"),
    click.option("--max-failed", metavar="N|P%", help="Stop when more records fail: a count, or a share such as 1%."),
    click.option("--strict", is_flag=True, default=None, help="Do as the vendor does: an object with a failed record gets no output."),
)  # fmt: skip

WORK_OPTIONS = options(
    click.option("--strategy", type=click.Choice(["multi", "single"]), help="Many records a call, or one.  [default: multi]"),
    click.option("--batch-rows", type=_COUNT, help="Records a batch.  [default: the model's max_batch_rows]"),
    click.option("--batch-bytes", callback=parse_bytes, metavar="SIZE", help="Or this much of records.  [default: 64MiB]"),
    click.option("--prefetch-bytes", callback=parse_bytes, metavar="SIZE", help="Read ahead at most.  [default: 32MiB]"),
    click.option("--task-bytes", callback=parse_bytes, metavar="SIZE", help="What one worker does in one go; larger text objects are cut.  [default: 64MiB]"),
    click.option("--checkpoint-s", type=click.FloatRange(min=0), help="The most work that a kill can cost.  [default: 5]"),
    click.option("--protocol", default="auto", show_default=True, type=click.Choice(["auto", "oip", "torchserve"]), help="What the endpoint speaks; auto goes by the URL."),
    click.option("--endpoint-model", help="The model's name, when the endpoint's URL is its root."),
    click.option("--max-concurrent", type=_COUNT, help="Requests under way to an endpoint.  [default: 16]"),
    click.option("--timeout-s", type=_POSITIVE, help="For one request to an endpoint.  [default: 60]"),
    click.option("--retry-s", type=click.FloatRange(min=0), default=120.0, show_default=True, help="How long a failing request is retried, to an endpoint or a store."),
)  # fmt: skip

_WORDS: Final = [
    "data_type",
    "content_type",
    "split",
    "compression",
    "members",
    "header",
    "delimiter",
    "input_filter",
    "columns",
    "text_column",
    "record_bytes_max",
    "image_mode",
    "image_scale",
    "window_ms",
    "hop_ms",
    "sample_rate_hz",
    "audio_channels",
    "every_frames",
    "every_ms",
    "accept",
    "assemble",
    "join",
    "output_filter",
    "slice_end",
    "output_header",
    "on_error",
    "max_failed",
    "strict",
    "batch_rows",
    "batch_bytes",
    "prefetch_bytes",
    "task_bytes",
    "checkpoint_s",
    "max_concurrent",
    "timeout_s",
]


_COMMAND_LINE: Final = "the command line"
_OPTION: Final = re.compile(rf"\b{OWN_TABLE}\.({'|'.join([*_WORDS, 'image_size'])})\b")
_CALLED: Final = {"sample_rate_hz": "--sample-rate"}
"""Options that are not called what their words are."""


def in_options_words(message: str) -> str:
    """What is wrong with a spec that options alone make, with the options' names."""
    said = message.removeprefix(f"{_COMMAND_LINE}: ")
    return _OPTION.sub(lambda word: _CALLED.get(word[1], "--" + word[1].replace("_", "-")), said)


def spec_from(given: Mapping[str, Any], spec_file: str | None) -> TransformSpec:
    """The spec that options make, with a spec file's words where they say nothing. Raises ConfigError."""
    name = spec_file or _COMMAND_LINE
    document: dict[str, Any] = {} if spec_file is None else _read(spec_file)
    own = document.get(OWN_TABLE, {})
    if isinstance(own, dict):
        document[OWN_TABLE] = {"whole_records": True, **own, **_said(given)}
    return spec_of(document, name)


def _read(spec_file: str) -> dict[str, Any]:
    path = Path(spec_file)
    try:
        if path.stat().st_size > SPEC_BYTES_MAX:
            raise ConfigError(f"{spec_file}: a spec is no larger than {SPEC_BYTES_MAX >> 20} MiB")
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{spec_file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{spec_file}: is not UTF-8, from byte {error.start} on") from error
    return read_document(text, spec_file)


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line says, as a spec's words."""
    words = {word: given[word] for word in _WORDS if given[word] not in (None, ())}
    words |= {word: list(given[word]) for word in ("members", "columns") if given[word]}
    if given["image_size"]:
        words["image_size"] = list(given["image_size"])
    text = words.get("text_column")
    if isinstance(text, str) and text.isdecimal():
        words["text_column"] = int(text)
    if given["strategy"] == "single":
        words["batch_rows"] = 1
    return words


def predictor_options_from(given: Mapping[str, Any], spec: TransformSpec) -> PredictorOptions:
    """How the model, or the endpoint, is asked."""
    default = PredictorOptions()
    return PredictorOptions(
        protocol=given["protocol"],
        endpoint_model=given["endpoint_model"],
        in_flight_max=spec.max_concurrent or default.in_flight_max,
        timeout_s=spec.timeout_s or default.timeout_s,
        retry_s=0.0 if spec.retries == 0 else given["retry_s"],
    )
