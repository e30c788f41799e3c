"""A job's options as settings: the options of a transform's spec file, for every kind. Pure."""

from dataclasses import replace
from typing import Any, Final

from headrace.core.errors import ConfigError
from headrace.core.settings import declared_settings
from headrace.core.settings_reader import read_value
from headrace.jobs.job import NewJob
from headrace.runs.sagemaker import FIELDS
from headrace.runs.settings import OutputSettings, StreamSettings, TransformSettings
from headrace.runs.spec import EXTENSION_TABLE, spec_of

_PARTS: Final = {
    declared.name: declared
    for declared in declared_settings(OutputSettings)
    if declared.name.startswith("part_")
}
_WHERE: Final = "options"
_JOB_FIELDS: Final = frozenset(
    {"source", "output", "model", "job_name", "instances", "in_flight_max", "max_concurrent"}
)
"""Options of a spec file that are fields of the job instead."""


def transform_settings(spec: NewJob) -> TransformSettings:
    """Return the settings of an `infer` or `transform` job.

    Raise ConfigError for an invalid option.

    Options are those of a spec file's ``headrace`` table; for a `transform`, also a whole document
    with SageMaker's tables. ``content_type`` and ``accept`` are the job's own, unless the options
    set them too.
    """
    options = dict(spec.options)
    if any(field in options for field in FIELDS):
        return _without_manifest(spec_of(options, _WHERE).settings)
    elsewhere = sorted(_JOB_FIELDS & options.keys())
    if elsewhere:
        raise ConfigError(f"{_WHERE}: {elsewhere[0]!r} is a field of the job, not an option")
    own: dict[str, Any] = {
        **({"content_type": spec.content_type} if spec.content_type else {}),
        **({"accept": spec.accept} if spec.accept else {}),
        **options,
    }
    return _without_manifest(spec_of({EXTENSION_TABLE: own}, _WHERE).settings)


def check_options(spec: NewJob) -> None:
    """Raise ConfigError, as its worker would, for a job whose options would make it fail."""
    if spec.kind != "infer" and not spec.output_uri:
        raise ConfigError(f"output_uri: a {spec.kind} needs one: a folder or prefix for its output")
    if spec.kind == "stream":
        stream_settings(spec)
    elif spec.kind == "transform" or spec.options:
        transform_settings(spec)


def stream_settings(spec: NewJob) -> StreamSettings:
    """Return the settings of a `stream` job: the same options, and limits of parts.

    Raise ConfigError.
    """
    options = {key: value for key, value in spec.options.items() if key not in _PARTS}
    settings = transform_settings(replace(spec, options=options))
    limits = {
        declared.field: read_value(declared, spec.options[key], f"{_WHERE}: {key}")
        for key, declared in _PARTS.items()
        if key in spec.options
    }
    return StreamSettings(
        read=settings.read,
        mapping=settings.mapping,
        flow=settings.flow,
        output=replace(settings.output, **limits),
        failures=settings.failures,
    )


def _without_manifest(settings: TransformSettings) -> TransformSettings:
    """Refuse manifests: the objects that one names were not checked against the key's permissions."""
    if settings.data_type == "manifest":
        raise ConfigError(
            f"{_WHERE}: a job's input is an object or a prefix, never a manifest: "
            "submit a job for each, or name their prefix"
        )
    return settings
