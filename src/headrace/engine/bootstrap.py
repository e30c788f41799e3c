"""What an instance and its process tell each other while it starts: words and numbers alone, as JSON has them."""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from headrace.core.model import ModelRecipe
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.engine.inputs import ModelInputs, exact_inputs
from headrace.engine.settings import ServeSettings

CONTROL_BYTES: Final = mmap.PAGESIZE
"""A page that both processes see: at its start, as CALL_NUMBER, the last call that was cancelled."""
CALL_NUMBER: Final = struct.Struct("<Q")


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
        return asdict(self)

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
    told: dict[str, Any] = {**values, "environ_pass": None if passed is None else tuple(passed)}
    return ServeSettings(**told)


def loaded_values(metadata: ModelMetadata, inputs: ModelInputs) -> dict[str, Any]:
    """What is known of a model once it has loaded, as plain values."""
    takes = {field.name: getattr(inputs, field.name) for field in fields(inputs) if field.init}
    takes["specs"] = [asdict(spec) for spec in inputs.specs]
    takes["optional"] = sorted(inputs.optional)
    del takes["exact"]  # follows from what is declared, and has no plain values
    return {"metadata": asdict(metadata), "inputs": takes}


def loaded_of(values: Mapping[str, Any]) -> tuple[ModelMetadata, ModelInputs]:
    """What `loaded_values` told."""
    says: dict[str, Any] = dict(values["metadata"])
    says |= {"inputs": _specs(says["inputs"]), "outputs": _specs(says["outputs"])}
    takes: dict[str, Any] = dict(values["inputs"])
    takes |= {"specs": _specs(takes["specs"]), "optional": frozenset(takes["optional"])}
    takes["exact"] = exact_inputs(takes["specs"]) if takes["declared"] else None
    return ModelMetadata(**says), ModelInputs(**takes)


def _specs(values: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(v["name"], v["datatype"], None if v["shape"] is None else tuple(v["shape"]))
        for v in values
    )
