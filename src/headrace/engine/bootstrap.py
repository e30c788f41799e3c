"""What an instance and its process tell each other while it starts: words and numbers alone, as JSON has them."""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import inf
from typing import Any, Final

from headrace.core.model import ModelRecipe
from headrace.core.sequence import SequenceLimits
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.engine.inputs import ModelInputs, exact_inputs
from headrace.engine.settings import ServeSettings

CONTROL_BYTES: Final = mmap.PAGESIZE
"""A page that both processes see: at its start, as CALL_NUMBER, the last call that was cancelled."""
CALL_NUMBER: Final = struct.Struct("<Q")
_EVER: Final = "inf"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """All that a process needs to know to make and load a model."""

    recipe: ModelRecipe
    name: str
    version: str | None
    fingerprint: str
    settings: ServeSettings
    log_level: int
    parent_pid: int

    def values(self) -> dict[str, Any]:
        """As plain values."""
        told = asdict(self)
        told["settings"]["sequences"] = _told_limits(self.settings.sequences)
        return told

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Bootstrap":
        """What `values` told."""
        made: dict[str, Any] = {
            **values,
            "recipe": ModelRecipe(**values["recipe"]),
            "settings": _settings(values["settings"]),
        }
        return cls(**made)


def _settings(values: Mapping[str, Any]) -> ServeSettings:
    passed = values["environ_pass"]
    told: dict[str, Any] = {
        **values,
        "environ_pass": None if passed is None else tuple(passed),
        "sequences": _limits(values["sequences"]),
    }
    return ServeSettings(**told)


def _told_limits(limits: Mapping[str, Any]) -> dict[str, Any]:
    # JSON has no infinity.
    return {name: _EVER if value == inf else value for name, value in limits.items()}


def _limits(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: inf if value == _EVER else value for name, value in told.items()}


def loaded_values(metadata: ModelMetadata, inputs: ModelInputs, sequences: SequenceLimits) -> dict[str, Any]:
    """What is known of a model once it has loaded, as plain values."""
    takes = {field.name: getattr(inputs, field.name) for field in fields(inputs) if field.init}
    takes["specs"] = [asdict(spec) for spec in inputs.specs]
    takes["optional"] = sorted(inputs.optional)
    del takes["exact"]  # follows from what is declared, and has no plain values
    return {"metadata": asdict(metadata), "inputs": takes, "sequences": _told_limits(asdict(sequences))}


def loaded_of(values: Mapping[str, Any]) -> tuple[ModelMetadata, ModelInputs, SequenceLimits]:
    """What `loaded_values` told."""
    says: dict[str, Any] = dict(values["metadata"])
    says |= {"inputs": _specs(says["inputs"]), "outputs": _specs(says["outputs"])}
    takes: dict[str, Any] = dict(values["inputs"])
    takes |= {"specs": _specs(takes["specs"]), "optional": frozenset(takes["optional"])}
    takes["exact"] = exact_inputs(takes["specs"]) if takes["declared"] else None
    return ModelMetadata(**says), ModelInputs(**takes), SequenceLimits(**_limits(values["sequences"]))


def _specs(values: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(v["name"], v["datatype"], None if v["shape"] is None else tuple(v["shape"]))
        for v in values
    )
