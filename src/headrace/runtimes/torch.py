"""PyTorch models as Models: TorchScript, torch.export, and weights with a class. The one door to torch and safetensors."""

import inspect
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.core.errors import (
    ConfigError,
    MissingExtraError,
    ModelContractError,
    ModelInputError,
    ModelLoadError,
)
from headrace.core.model import Model
from headrace.core.tensor import Array, TensorSpec
from headrace.runtimes.classes import class_named
from headrace.runtimes.fixed_rows import in_pieces
from headrace.runtimes.named import by_name, with_names
from headrace.runtimes.options import tensor_specs
from headrace.runtimes.text import one_line

try:
    import safetensors.torch as _safetensors
    import torch as _torch
    import torch.export.passes as _passes
except ImportError as _error:
    raise MissingExtraError("torch", "a PyTorch model") from _error

# Their types are partial.
passes: Any = _passes
safetensors: Any = _safetensors
torch: Any = _torch

PINNED_BYTES_MIN: Final = 1 << 16
"""Inputs of at least this size go to a GPU through pinned memory; below, a plain copy is quicker."""

_FLOATS: Final = ("float32", "bfloat16", "float16")
_DATATYPES: Final = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
    torch.bfloat16: "FP32",
}


def device_named(name: str, model: str) -> Any:
    """The torch device ``cpu``, ``cuda``, ``cuda:1`` and so on; ``auto`` is a GPU where there is one.

    Raises ModelLoadError for a device that is not there, ConfigError for a name that torch does not know.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ConfigError(
            f"model {model}: option 'device' must be auto, cpu or cuda:0, not {name!r}"
        ) from None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ModelLoadError(
            model, f"there is no device {name} here: torch {torch.__version__} sees {count} GPUs"
        )
    return device


def dtype_named(name: str | None, option: str, model: str) -> Any:
    """A torch dtype of floats by its name, None for None; ConfigError for others."""
    if name is not None and name not in _FLOATS:
        raise ConfigError(f"model {model}: option {option!r} must be of {', '.join(_FLOATS)}, not {name!r}")
    return None if name is None else getattr(torch, name)


def inference_mode() -> AbstractContextManager[Any]:
    """No gradients, and no book-keeping for them."""
    return torch.inference_mode()


def array_of(tensor: Any) -> Array:
    """A tensor's values as numpy, without a copy where it is in main memory; bfloat16 becomes float32."""
    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:
        plain = plain.float()
    return plain.cpu().numpy()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A module on its device, and what its file tells. `fixed_rows` is 0 where any number of rows will do."""

    call: Callable[..., Any]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    positional: int = 0
    fixed_rows: int = 0
    rows_max: int | None = None


class TorchModel(Model):
    """A PyTorch module, in eval mode and without gradients.

    ``.pt`` and ``.ts`` are TorchScript archives; ``.pt2`` is what ``torch.export.save`` wrote, and tells names, types and
    shapes of its inputs itself; ``.safetensors``, and a ``.pt`` of weights, need the `class_` that they belong to. Nothing is
    ever unpickled but weights (``weights_only``).

    Inputs have the names of ``forward``'s parameters. A result that is a mapping, a named tuple or a dataclass has its own
    names for outputs; one tensor is ``output``, a tuple ``output_0`` and so on, unless `outputs` names them. bfloat16
    leaves as float32.

    Args:
        path: The file.
        device: ``cpu``, ``cuda:0`` and so on; ``auto`` is a GPU where there is one.
        class_: (as an option: ``class``) ``module:Net``, or ``net.py:Net`` beside the file.
        arguments: Keyword arguments for the class.
        inputs: Specs of the inputs; types are checked only then.
        outputs: Specs or names of the outputs, in order.
        dtype: Weights and floating inputs are made this: float32, bfloat16 or float16.
        autocast: Run under autocast to bfloat16 or float16.
        intra_op_threads: Threads within one call on the CPU, for the whole process; None leaves torch's own default.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: str = "auto",
        class_: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        dtype: str | None = None,
        autocast: str | None = None,
        intra_op_threads: int | None = None,
    ) -> None:
        self._path = path
        self._name = path.stem
        self._device_name = device
        self._class = class_
        self._arguments = dict(arguments or {})
        self._input_specs = tensor_specs(inputs, "inputs", str(path))
        named = [{"name": o} if isinstance(o, str) else o for o in outputs or ()]
        self._output_specs = tensor_specs(named, "outputs", str(path))
        self._output_types = not any(isinstance(o, str) for o in outputs or ())
        self._dtype = dtype_named(dtype, "dtype", self._name)
        self._autocast = dtype_named(autocast, "autocast", self._name)
        if intra_op_threads is not None and intra_op_threads < 1:
            raise ConfigError(f"{path}: option 'intra_op_threads' must be 1 or more, not {intra_op_threads}")
        self._threads = intra_op_threads
        if path.suffix == ".safetensors" and class_ is None:
            raise ConfigError(
                f"{path} holds weights alone: say whose with the option class = 'net.py:Net' or 'module:Net'"
            )
        self._loaded: _Loaded | None = None

    def load(self) -> None:
        """Read the file onto the device. ModelLoadError when it is no model that runs here."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        # Inputs that nobody may write to are read only; and what torch would rather have is the operator's business.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated")
        self._device = device_named(self._device_name, self._name)
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        # What goes to another memory is copied anyway; a module may work in place on what does not.
        self.writes_inputs = self._stream is None
        try:
            loaded = self._load()
        except (ModelLoadError, ConfigError):
            raise
        except Exception as error:
            raise self._unfit(f"{self._path} does not load: {one_line(error)}") from error
        self._loaded = loaded
        self.inputs = self._input_specs or loaded.inputs
        if self._output_specs:
            self.outputs = self._output_specs if self._output_types else ()
        else:
            self.outputs = loaded.outputs
        if loaded.rows_max is not None:
            self.max_batch_rows = min(self.max_batch_rows, loaded.rows_max)
        if not self.inputs:
            # So that forward's parameters name the inputs, as those of a predict would.
            vars(self)["predict"] = with_names(self._answer, loaded.required, loaded.optional)

    def _load(self) -> _Loaded:
        if self._path.suffix == ".safetensors":
            return self._module(lambda module: safetensors.load_model(module, str(self._path)))
        if not zipfile.is_zipfile(self._path):
            raise self._unfit(f"{self._path} is no archive that torch has written")
        if self._path.suffix == ".pt2":
            return self._exported()
        if self._class is not None:
            return self._module(self._read_weights)
        return self._script()

    def _script(self) -> _Loaded:
        with zipfile.ZipFile(self._path) as archive:
            is_script = any(name.endswith("/constants.pkl") for name in archive.namelist())
        if not is_script:
            raise self._unfit(
                f"{self._path} is a pickle of weights or of a module, not TorchScript: save it with torch.export.save (.pt2) "
                "or its weights as .safetensors; weights can be read with the option class = 'net.py:Net'"
            )
        module = torch.jit.load(str(self._path), map_location=self._device).eval()
        # The first argument is the module itself, whatever its author called it.
        own = module.forward.schema.arguments[1:]
        return _Loaded(
            self._ready(module),
            tuple(a.name for a in own if not a.has_default_value()),
            tuple(a.name for a in own if a.has_default_value()),
        )

    def _module(self, fill: Callable[[Any], object]) -> _Loaded:
        found = class_named(self._class or "", self._path.parent)
        if not issubclass(found, torch.nn.Module):
            raise ConfigError(f"{self._path}: {self._class} is no torch.nn.Module")
        module: Any = found(**self._arguments)
        fill(module)
        parameters = list(inspect.signature(module.forward).parameters.values())
        plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        return _Loaded(
            self._ready(module.eval()),
            tuple(p.name for p in plain if p.default is p.empty),
            tuple(p.name for p in plain if p.default is not p.empty),
        )

    def _read_weights(self, module: Any) -> None:
        module.load_state_dict(torch.load(self._path, map_location="cpu", weights_only=True))

    def _ready(self, module: Any) -> Any:
        return module.to(device=self._device, dtype=self._dtype)

    def _exported(self) -> _Loaded:
        program = torch.export.load(str(self._path))
        if self._device.type != "cpu":
            program = passes.move_to_device_pass(program, str(self._device))
        names = program.graph_signature.user_inputs
        values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
        example: Any = program.example_inputs or ((), {})
        if len(example[0]) + len(example[1]) != len(names) or not all(isinstance(n, str) for n in names):
            raise self._unfit(
                f"{self._path} takes nested or constant inputs ({names}): export it with tensors alone"
            )
        sizes: list[Any] = [values[n].shape[0] for n in names]
        fixed = next((size for size in sizes if isinstance(size, int)), 0)
        return _Loaded(
            program.module(),
            tuple(names),
            inputs=tuple(_spec(n, values[n]) for n in names),
            outputs=_exported_outputs(program),
            positional=len(example[0]),
            fixed_rows=fixed,
            rows_max=None if fixed else _rows_max(program, sizes),
        )

    def close(self) -> None:
        """Let the module go."""
        self._loaded = None

    def predict(self, **tensors: Array) -> Mapping[str, Array]:
        """Run the module on a batch."""
        return self._answer(tensors)

    def _answer(self, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        loaded = self._loaded
        assert loaded is not None
        if loaded.fixed_rows:
            return in_pieces(self._run, tensors, loaded.fixed_rows, self._name)
        return self._run(tensors)

    def _run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode(), self._on_stream(), self._under_autocast():
            named = self._named(self._called({n: self._moved(n, d) for n, d in tensors.items()}))
            if self._stream is None:
                return {name: array_of(tensor) for name, tensor in named.items()}
            # All copies are on their way before any is waited for.
            floats = {n: t.float() if t.dtype == torch.bfloat16 else t for n, t in named.items()}
            coming = {n: t.to("cpu", non_blocking=True) for n, t in floats.items()}
            self._stream.synchronize()
            return {name: tensor.numpy() for name, tensor in coming.items()}

    def _on_stream(self) -> AbstractContextManager[Any]:
        """A stream of its own for each instance, so that several overlap on one GPU."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _under_autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._autocast is None else torch.autocast(self._device.type, self._autocast)

    def _moved(self, name: str, data: Array) -> Any:
        """An array as a tensor on the device, over the same memory where that is the device's."""
        if data.dtype == object:
            raise ModelInputError(
                self._name, f"input {name!r} is text, which no torch module takes: encode it first"
            )
        tensor = torch.from_numpy(np.ascontiguousarray(data))
        if tensor.dtype == torch.uint16 and any(s.name == name and s.datatype == "BF16" for s in self.inputs):
            tensor = tensor.view(torch.bfloat16)
        if self._stream is not None:
            if data.nbytes >= PINNED_BYTES_MIN:
                tensor = tensor.pin_memory()
            tensor = tensor.to(self._device, non_blocking=True)
        return tensor.to(self._dtype) if self._dtype is not None and tensor.is_floating_point() else tensor

    def _called(self, tensors: dict[str, Any]) -> Any:
        """By name where forward knows the names; the first ones by position, for an exported program or other names."""
        loaded = self._loaded
        assert loaded is not None
        known = {*loaded.required, *loaded.optional}
        if loaded.positional:
            order = [s.name for s in self.inputs] if not tensors.keys() <= known else list(loaded.required)
            args = [tensors[n] for n in order]
            rest = dict(zip(loaded.required[loaded.positional :], args[loaded.positional :], strict=True))
            return loaded.call(*args[: loaded.positional], **rest)
        if tensors.keys() <= known:
            return loaded.call(**tensors)
        return (
            loaded.call(*(tensors[s.name] for s in self.inputs))
            if self.inputs
            else loaded.call(*tensors.values())
        )

    def _named(self, result: Any) -> dict[str, Any]:
        names = [s.name for s in self._output_specs]
        found = by_name(result, torch.is_tensor)
        if names and len(names) != len(found):
            why = f"its result has {len(found)} tensors, but the option 'outputs' names {', '.join(names)}"
            raise ModelContractError(self._name, why)
        if not names or set(names) == set(found):
            return found
        return dict(zip(names, found.values(), strict=True))

    def _unfit(self, why: str) -> ModelLoadError:
        return ModelLoadError(self._name, why)


def _spec(name: str, value: Any) -> TensorSpec:
    """From a traced value. The first axis is rows, as many as come."""
    sizes = [size if isinstance(size, int) else -1 for size in value.shape]
    return TensorSpec(name, _DATATYPES.get(value.dtype, "FP32"), (-1, *sizes[1:]))


def _rows_max(program: Any, sizes: Sequence[Any]) -> int | None:
    """The most rows that an exported program was told to take; None for any number."""
    symbols = {size.node.expr for size in sizes}
    uppers = [bounds.upper for symbol, bounds in program.range_constraints.items() if symbol in symbols]
    return min((int(u) for u in uppers if u.is_Integer), default=None)


def _exported_outputs(program: Any) -> tuple[TensorSpec, ...]:
    """Specs of the outputs, named as `by_name` names them; none where they are nested."""
    out_spec = program.call_spec.out_spec
    node = next(n for n in program.graph.nodes if n.op == "output")
    values: list[Any] = [getattr(o, "meta", {}).get("val") for o in node.args[0]]
    if out_spec.type is None:
        names = ["output"]
    elif issubclass(out_spec.type, dict):
        names = [str(key) for key in out_spec.context]
    elif out_spec.type in (tuple, list):
        names = [f"output_{index}" for index in range(out_spec.num_children)]
    else:
        return ()
    if len(names) != len(values) or not all(hasattr(v, "dtype") and v.ndim for v in values):
        return ()
    return tuple(_spec(name, value) for name, value in zip(names, values, strict=True))
