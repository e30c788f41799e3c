"""A job's options as settings: the words of a transform's spec file, for every kind. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from headrace.core.errors import ConfigError
from headrace.jobs.job import NewJob
from headrace.pipeline.settings import OutputSettings, StreamSettings
from headrace.transforms.settings import TransformSettings
from headrace.transforms.spec import OWN_TABLE, spec_of
from headrace.transforms.vendor import FIELDS

_PARTS: Final = ("part_bytes_max", "part_rows_max")
_WHERE: Final = "options"
_SAID_ELSEWHERE: Final = frozenset({"source", "output", "model", "job_name", "instances", "max_concurrent"})
"""Words of a spec file that a job says beside its options."""


def transform_settings(spec: NewJob) -> TransformSettings:
    """The settings of an `infer` or `transform` job. ConfigError names the word that cannot be.

    Options are the words of a spec file's ``headrace`` table, as they stand; or, of a `transform`, a whole document with
    the vendor's tables. ``content_type`` and ``accept`` are the job's own, unless the options say them too.
    """
    options = dict(spec.options)
    if any(field in options for field in FIELDS):
        return _without_manifest(spec_of(options, _WHERE).settings)
    elsewhere = sorted(_SAID_ELSEWHERE & options.keys())
    if elsewhere:
        raise ConfigError(f"{_WHERE}: {elsewhere[0]!r} is said beside the options, not in them")
    own: dict[str, Any] = {
        **({"content_type": spec.content_type} if spec.content_type else {}),
        **({"accept": spec.accept} if spec.accept else {}),
        **options,
    }
    return _without_manifest(spec_of({OWN_TABLE: own}, _WHERE).settings)


def check_words(spec: NewJob) -> None:
    """Refuse a job whose words its kind could only fail by: ConfigError, as its worker would raise it."""
    if spec.kind != "infer" and not spec.output_uri:
        raise ConfigError(f"output_uri: a {spec.kind} needs one: a folder or prefix for what it writes")
    if spec.kind == "stream":
        stream_settings(spec)
    elif spec.kind == "transform" or spec.options:
        transform_settings(spec)


def stream_settings(spec: NewJob) -> StreamSettings:
    """The settings of a `stream` job: the same words, and how large parts become. ConfigError."""
    options = {key: value for key, value in spec.options.items() if key not in _PARTS}
    settings = transform_settings(replace(spec, options=options))
    output = settings.output
    if output.accept not in {"auto", "csv", "jsonl", "parquet"}:
        raise ConfigError(f"{_WHERE}: a stream writes csv, jsonl or parquet, not {output.accept}")
    bounds = {key: _whole(spec.options, key) for key in _PARTS if key in spec.options}
    written = OutputSettings(
        format="csv" if output.accept == "auto" else output.accept,  # pyright: ignore[reportArgumentType]
        join=output.join,
        header=output.header,
        checkpoint_s=settings.tasks.checkpoint_s,
        **bounds,
    )
    return StreamSettings(settings.read, settings.mapping, settings.flow, written)


def _without_manifest(settings: TransformSettings) -> TransformSettings:
    """What a manifest names was never looked at by whoever decides what a key may read: it could be anything."""
    if settings.data_type == "manifest":
        raise ConfigError(
            f"{_WHERE}: a job's input is an object or a prefix, never a manifest: submit a job for each, or name their prefix"
        )
    return settings


def _whole(options: Mapping[str, Any], key: str) -> int:
    value = options[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{_WHERE}: {key} must be a whole number, not {value!r}")
    return value
