"""PyTorch models: TorchScript, torch.export, and weights with a class.

The only module that imports torch and safetensors.
"""

import inspect
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

from headrace.core.errors import (
    ConfigError,
    MissingExtraError,
    ModelContractError,
    ModelInputError,
    ModelLoadError,
)
from headrace.core.model import Model
from headrace.core.tensor import Array, TensorSpec
from headrace.runtimes.classes import load_class
from headrace.runtimes.model_io import (
    outputs_by_name,
    predict_with_signature,
    run_in_fixed_batches,
    summarize_error,
    tensor_specs,
)

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
"""Bytes from which an input goes to a GPU through pinned memory. Below, a plain copy is faster."""

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


def parse_device(name: str, model: str) -> Any:
    """Return the torch device of a name such as ``cpu`` or ``cuda:1``.

    ``auto`` is a GPU if there is one.

    Raises:
        ModelLoadError: There is no such device here.
        ConfigError: torch does not know the name.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ConfigError(
            f"model {model}: option 'device' must be auto, cpu or a GPU such as cuda:0, not {name!r}"
        ) from None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ModelLoadError(
            model, f"device {name} does not exist here: torch {torch.__version__} sees {count} GPUs"
        )
    return device


def parse_dtype(name: str | None, option: str, model: str) -> Any:
    """Return a torch float dtype by its name, None for None. Raises ConfigError for another name."""
    if name is not None and name not in _FLOATS:
        raise ConfigError(
            f"model {model}: option {option!r} must be one of {', '.join(_FLOATS)}, not {name!r}"
        )
    return None if name is None else getattr(torch, name)


def to_numpy(tensor: Any) -> Array:
    """Return a tensor's values as numpy.

    Values in main memory are not copied. bfloat16 becomes float32.
    """
    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:
        plain = plain.float()
    return plain.cpu().numpy()


@dataclass(frozen=True, slots=True)
class _LoadedModule:
    """A module on its device, and the facts in its file.

    `fixed_rows` is 0 if any number of rows is accepted.
    """

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

    - ``.pt`` and ``.ts`` are TorchScript archives.
    - ``.pt2`` is an archive of ``torch.export.save``, which holds names, types and shapes of its
      inputs.
    - ``.safetensors``, and a ``.pt`` of weights, need the `class_` of the weights.

    Only weights are ever unpickled (``weights_only``).

    Inputs have the names of ``forward``'s parameters. A mapping, a named tuple or a dataclass names
    the outputs. One tensor is ``output``, and the tensors of a tuple are ``output_0`` and so on,
    unless `outputs` names them. bfloat16 becomes float32 in outputs.

    Args:
        path: The file.
        device: ``cpu``, ``cuda:0`` and so on. ``auto`` is a GPU if there is one.
        class_: ``module:Net``, or ``net.py:Net`` beside the file. The option is called ``class``.
        arguments: Keyword arguments for the class.
        inputs: Specs of the inputs. Without them, types are not checked.
        outputs: Specs or names of the outputs, in order.
        dtype: The dtype of weights and floating inputs: float32, bfloat16 or float16.
        autocast: Run under autocast to bfloat16 or float16.
        intra_op_threads: Threads within one call on the CPU, for the whole process. None keeps
            torch's default.
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
        self._dtype = parse_dtype(dtype, "dtype", self._name)
        self._autocast = parse_dtype(autocast, "autocast", self._name)
        if intra_op_threads is not None and intra_op_threads < 1:
            raise ConfigError(f"{path}: option 'intra_op_threads' must be 1 or more, not {intra_op_threads}")
        self._threads = intra_op_threads
        if path.suffix == ".safetensors" and class_ is None:
            raise ConfigError(
                f"{path} holds only weights: name their class, option class = 'net.py:Net' or 'module:Net'"
            )
        self._loaded: _LoadedModule | None = None

    @override
    def load(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        # Read-only input arrays are intended, and the archive format is the operator's choice.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated")
        self._device = parse_device(self._device_name, self._name)
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        # A transfer to GPU memory copies the inputs. On the CPU a module may write into them.
        self.writes_inputs = self._stream is None
        try:
            loaded = self._load()
        except (ModelLoadError, ConfigError):
            raise
        except Exception as error:
            raise self._load_error(f"{self._path} does not load: {summarize_error(error)}") from error
        self._loaded = loaded
        self.inputs = self._input_specs or loaded.inputs
        if self._output_specs:
            self.outputs = self._output_specs if self._output_types else ()
        else:
            self.outputs = loaded.outputs
        if loaded.rows_max is not None:
            self.max_batch_rows = min(self.max_batch_rows, loaded.rows_max)
        if not self.inputs:
            # forward's parameters then name the inputs, as a predict method's parameters would.
            vars(self)["predict"] = predict_with_signature(self._run_batch, loaded.required, loaded.optional)

    def _load(self) -> _LoadedModule:
        if self._path.suffix == ".safetensors":
            return self._module(lambda module: safetensors.load_model(module, str(self._path)))
        if not zipfile.is_zipfile(self._path):
            raise self._load_error(f"{self._path} is not an archive written by torch")
        if self._path.suffix == ".pt2":
            return self._exported()
        if self._class is not None:
            return self._module(
                lambda module: module.load_state_dict(
                    torch.load(self._path, map_location="cpu", weights_only=True)
                )
            )
        return self._script()

    def _script(self) -> _LoadedModule:
        with zipfile.ZipFile(self._path) as archive:
            is_script = any(name.endswith("/constants.pkl") for name in archive.namelist())
        if not is_script:
            raise self._load_error(
                f"{self._path} is a pickle of weights or of a module, not TorchScript: save it with "
                "torch.export.save (.pt2) or its weights as .safetensors; "
                "weights need the option class = 'net.py:Net'"
            )
        module = torch.jit.load(str(self._path), map_location=self._device).eval()
        # The first argument is the module itself, whatever its name.
        parameters = module.forward.schema.arguments[1:]
        return _LoadedModule(
            module.to(device=self._device, dtype=self._dtype),
            tuple(a.name for a in parameters if not a.has_default_value()),
            tuple(a.name for a in parameters if a.has_default_value()),
        )

    def _module(self, fill: Callable[[Any], object]) -> _LoadedModule:
        found = load_class(self._class or "", self._path.parent)
        if not issubclass(found, torch.nn.Module):
            raise ConfigError(f"{self._path}: {self._class} is not a torch.nn.Module")
        module: Any = found(**self._arguments)
        fill(module)
        parameters = list(inspect.signature(module.forward).parameters.values())
        plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        return _LoadedModule(
            module.eval().to(device=self._device, dtype=self._dtype),
            tuple(p.name for p in plain if p.default is p.empty),
            tuple(p.name for p in plain if p.default is not p.empty),
        )

    def _exported(self) -> _LoadedModule:
        program = torch.export.load(str(self._path))
        if self._device.type != "cpu":
            program = passes.move_to_device_pass(program, str(self._device))
        names = program.graph_signature.user_inputs
        values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
        example: Any = program.example_inputs or ((), {})
        if len(example[0]) + len(example[1]) != len(names) or not all(isinstance(n, str) for n in names):
            raise self._load_error(
                f"{self._path} takes nested or constant inputs ({names}): export it with tensors only"
            )
        sizes: list[Any] = [values[n].shape[0] for n in names]
        fixed = next((size for size in sizes if isinstance(size, int)), 0)
        return _LoadedModule(
            program.module(),
            tuple(names),
            inputs=tuple(_spec(n, values[n]) for n in names),
            outputs=_exported_outputs(program),
            positional=len(example[0]),
            fixed_rows=fixed,
            rows_max=None if fixed else _rows_max(program, sizes),
        )

    @override
    def close(self) -> None:
        self._loaded = None

    @override
    def predict(self, /, **tensors: Array) -> Mapping[str, Array]:
        return self._run_batch(tensors)

    def _run_batch(self, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        loaded = self._loaded
        assert loaded is not None
        if loaded.fixed_rows:
            return run_in_fixed_batches(self._run, tensors, loaded.fixed_rows, self._name)
        return self._run(tensors)

    def _run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode(), self._on_stream(), self._under_autocast():
            named = self._name_outputs(self._call({n: self._to_device(n, d) for n, d in tensors.items()}))
            if self._stream is None:
                return {name: to_numpy(tensor) for name, tensor in named.items()}
            # All copies start before the first wait.
            floats = {n: t.float() if t.dtype == torch.bfloat16 else t for n, t in named.items()}
            copies = {n: t.to("cpu", non_blocking=True) for n, t in floats.items()}
            self._stream.synchronize()
            return {name: tensor.numpy() for name, tensor in copies.items()}

    def _on_stream(self) -> AbstractContextManager[Any]:
        """Return a context with this instance's own CUDA stream.

        Instances then overlap on one GPU.
        """
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _under_autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._autocast is None else torch.autocast(self._device.type, self._autocast)

    def _to_device(self, name: str, data: Array) -> Any:
        """Return an array as a tensor on the device, over the same memory if the device is the CPU."""
        if data.dtype == object:
            raise ModelInputError(
                self._name, f"input {name!r} is text, which torch modules do not accept: encode it first"
            )
        tensor = torch.from_numpy(np.ascontiguousarray(data))
        if tensor.dtype == torch.uint16 and any(s.name == name and s.datatype == "BF16" for s in self.inputs):
            tensor = tensor.view(torch.bfloat16)
        if self._stream is not None:
            if data.nbytes >= PINNED_BYTES_MIN:
                tensor = tensor.pin_memory()
            tensor = tensor.to(self._device, non_blocking=True)
        return tensor.to(self._dtype) if self._dtype is not None and tensor.is_floating_point() else tensor

    def _call(self, tensors: dict[str, Any]) -> Any:
        """Call the module: by name if forward has these names, else by position.

        An exported program takes its first inputs by position.
        """
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

    def _name_outputs(self, result: Any) -> dict[str, Any]:
        names = [s.name for s in self._output_specs]
        found = outputs_by_name(result, torch.is_tensor)
        if names and len(names) != len(found):
            why = f"its result has {len(found)} tensors, but the option 'outputs' names {', '.join(names)}"
            raise ModelContractError(self._name, why)
        if not names or set(names) == set(found):
            return found
        return dict(zip(names, found.values(), strict=True))

    def _load_error(self, why: str) -> ModelLoadError:
        return ModelLoadError(self._name, why)


def _spec(name: str, value: Any) -> TensorSpec:
    """Return the spec of a traced value. The first axis is rows, of any number."""
    sizes = [size if isinstance(size, int) else -1 for size in value.shape]
    return TensorSpec(name, _DATATYPES.get(value.dtype, "FP32"), (-1, *sizes[1:]))


def _rows_max(program: Any, sizes: Sequence[Any]) -> int | None:
    """Return the row limit of an exported program, or None if it has none."""
    symbols = {size.node.expr for size in sizes}
    uppers = [bounds.upper for symbol, bounds in program.range_constraints.items() if symbol in symbols]
    return min((int(u) for u in uppers if u.is_Integer), default=None)


def _exported_outputs(program: Any) -> tuple[TensorSpec, ...]:
    """Return the specs of the outputs, named as by `outputs_by_name`.

    The result is empty for nested outputs.
    """
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
