"""Checks of the methods that a model's class defines, with the correction in each error."""

import difflib
import sys
from typing import Any, Final

from headrace.core.errors import ModelLoadError
from headrace.core.model import Model, has_handle, has_predict, has_predict_stream, has_step

_EXAMPLES: Final = {
    "predict": "def predict(self, x)",
    "predict_stream": "def predict_stream(self, requests)",
    "handle": "def handle(self, requests)",
    "step": "def step(self, states, x)",
    "predict_request": "def predict_request(self, request)",
}
"""The methods that serve requests, as a user writes them."""


def check_methods(model: Model, name: str) -> None:
    """Raise ModelLoadError if the model has no method that serves requests, or has step and others.

    The error names the class, its file and the method to write.
    """
    defined = _defined_methods(model)
    for method in defined:
        value = getattr(model, method)
        if not callable(value):
            raise ModelLoadError(
                name, f"{method} of {_location(model)} is {value!r:.80}, not a method: {_advice(method)}"
            )
    if not defined:
        raise ModelLoadError(name, f"{_location(model)} {_missing(model)}")
    if "step" in defined and (others := ", ".join(m for m in defined if m != "step")):
        raise ModelLoadError(name, f"it defines both step and {others}: step alone serves all requests")


def _defined_methods(model: Model) -> list[str]:
    defined = {
        "predict": has_predict(model),
        "predict_stream": has_predict_stream(model),
        "handle": has_handle(model),
        "step": has_step(model),
        "predict_request": model.predict_request is not None,
    }
    return [method for method, is_defined in defined.items() if is_defined]


def _missing(model: Model) -> str:
    """Return the reason for a model without any method that serves requests."""
    reason = "has no predict, no predict_stream, no handle and no step"
    for method in ("predict", "predict_stream", "handle", "step"):
        if similar := _similar_name(model, method):
            return f"{reason}: rename its {similar} to {method}"
    return f"{reason}: {_advice('predict')}, which returns one row for each row of x"


def _similar_name(model: Model, method: str) -> str:
    """Return the name of a method of the user's class that looks like `method`, else ""."""
    names = {
        attribute.lower(): attribute
        for base in type(model).__mro__
        if base is not Model and issubclass(base, Model)
        for attribute, value in vars(base).items()
        if attribute not in vars(Model) and _is_method(value)
    }
    close = difflib.get_close_matches(method, names, n=1, cutoff=0.75)
    return names[close[0]] if close else ""


def _is_method(value: Any) -> bool:
    return callable(value) or isinstance(value, classmethod | staticmethod)


def _advice(method: str) -> str:
    return f"write {_EXAMPLES[method]}"


def _location(model: Model) -> str:
    """Return the class of a model and the file that defines it."""
    kind = type(model)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__
    return f"class {kind.__name__} ({file})"
