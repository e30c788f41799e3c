"""Start-up messages between an instance and its process, as plain JSON values."""

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
"""Size of the page that both processes map. It begins with the number of the last cancelled call,
as CALL_NUMBER.
"""
CALL_NUMBER: Final = struct.Struct("<Q")
_INFINITY: Final = "inf"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The settings that a process needs to make and load a model."""

    recipe: ModelRecipe
    name: str
    version: str | None
    fingerprint: str
    settings: ServeSettings
    log_level: int
    parent_pid: int

    def to_wire(self) -> dict[str, Any]:
        """Return the bootstrap as plain values."""
        values = asdict(self)
        values["settings"]["sequences"] = _limits_to_wire(self.settings.sequences)
        return values

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> "Bootstrap":
        """Return the bootstrap of plain values from `to_wire`."""
        made: dict[str, Any] = {
            **values,
            "recipe": ModelRecipe(**values["recipe"]),
            "settings": _settings_from_wire(values["settings"]),
        }
        return cls(**made)


def _settings_from_wire(values: Mapping[str, Any]) -> ServeSettings:
    environ_pass = values["environ_pass"]
    arguments: dict[str, Any] = {
        **values,
        "environ_pass": None if environ_pass is None else tuple(environ_pass),
        "sequences": _limits_from_wire(values["sequences"]),
    }
    return ServeSettings(**arguments)


def _limits_to_wire(limits: Mapping[str, Any]) -> dict[str, Any]:
    # JSON has no infinity.
    return {name: _INFINITY if value == inf else value for name, value in limits.items()}


def _limits_from_wire(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: inf if value == _INFINITY else value for name, value in values.items()}


def loaded_to_wire(metadata: ModelMetadata, inputs: ModelInputs, sequences: SequenceLimits) -> dict[str, Any]:
    """Return the properties of a loaded model as plain values."""
    inputs_values = {field.name: getattr(inputs, field.name) for field in fields(inputs) if field.init}
    inputs_values["specs"] = [asdict(spec) for spec in inputs.specs]
    inputs_values["optional"] = sorted(inputs.optional)
    del inputs_values["exact"]  # derived from the declared inputs on the other side
    return {
        "metadata": asdict(metadata),
        "inputs": inputs_values,
        "sequences": _limits_to_wire(asdict(sequences)),
    }


def loaded_from_wire(values: Mapping[str, Any]) -> tuple[ModelMetadata, ModelInputs, SequenceLimits]:
    """Return the properties that `loaded_to_wire` encoded."""
    metadata_values: dict[str, Any] = dict(values["metadata"])
    metadata_values |= {
        "inputs": _specs_from_wire(metadata_values["inputs"]),
        "outputs": _specs_from_wire(metadata_values["outputs"]),
    }
    inputs_values: dict[str, Any] = dict(values["inputs"])
    inputs_values |= {
        "specs": _specs_from_wire(inputs_values["specs"]),
        "optional": frozenset(inputs_values["optional"]),
    }
    inputs_values["exact"] = exact_inputs(inputs_values["specs"]) if inputs_values["declared"] else None
    return (
        ModelMetadata(**metadata_values),
        ModelInputs(**inputs_values),
        SequenceLimits(**_limits_from_wire(values["sequences"])),
    )


def _specs_from_wire(values: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(v["name"], v["datatype"], None if v["shape"] is None else tuple(v["shape"]))
        for v in values
    )
