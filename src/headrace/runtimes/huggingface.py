"""Hugging Face transformers from a local folder as models.

The only module that imports transformers.

Text generation can be streamed token by token.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError, ModelInputError, ModelLoadError
from headrace.core.model import Model, RowError
from headrace.core.tensor import Array, InferRequest, TensorSpec, text_array
from headrace.runtimes.huggingface_parts import (
    TokenQueue,
    decode_token_stream,
    read_sentence_settings,
    read_task,
)
from headrace.runtimes.model_io import decode_text, encode_json_texts, summarize_error

try:
    import transformers as _transformers

    # This module has an extra of its own, which would be named first and is included in this one.
    from headrace.runtimes.torch import parse_device, parse_dtype, to_numpy, torch
except (ImportError, MissingExtraError) as _error:
    raise MissingExtraError("huggingface", "a Hugging Face model") from _error

transformers: Any = _transformers  # Its types are made at import.

# Progress bars would mix with the log lines of a server.
transformers.utils.logging.disable_progress_bar()

TOKENS_MAX: Final = 512
"""Limit of tokens per text."""
NEW_TOKENS: Final = 64
"""Default number of generated tokens."""

_PredictTexts = Callable[[list[str]], Mapping[str, Array]]
_PER_REQUEST: Final = {
    "max_new_tokens": int,
    "do_sample": bool,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "repetition_penalty": float,
}
"""Parameters of a request that set its own generation."""


class HuggingFaceModel(Model):
    """A folder written by ``save_pretrained``: model, tokenizer and configuration.

    Nothing is downloaded.

    The input is ``text`` ``[n]``. Outputs depend on the task:

    - ``text-classification``: ``label`` and ``score`` ``[n]`` of the best class, and ``scores``
      ``[n, classes]`` in the order of the configuration.
    - ``feature-extraction``: ``embedding`` ``[n, size]``. With ``pooling = "none"``: ``features``
      ``[n]``, JSON, a list of numbers per token.
    - ``token-classification``: ``entities`` ``[n]``, a JSON list each.
    - ``text-generation``: ``text`` ``[n]``, the generated text without the prompt. A stream yields
      the pieces of one prompt as they are generated. Generation ends within a token after the
      client disconnects.
    - another pipeline over texts: ``output`` ``[n]``, JSON.

    Args:
        path: The folder.
        task: The name of a pipeline. None means the task of the configuration's architecture.
        device: ``cpu``, ``cuda:0`` and so on. ``auto`` is a GPU if there is one.
        dtype: float32, bfloat16 or float16. None means the dtype of the weights.
        pooling: ``mean``, ``cls`` or ``none``, for feature-extraction. None means the settings that
            sentence-transformers wrote to the folder (with its normalisation and its longest text),
            else ``mean``.
        aggregation: How token-classification joins tokens: ``none``, ``simple``, ``first``,
            ``average`` or ``max``.
        generation: Arguments of ``generate``, such as ``max_new_tokens``. A request's parameters of
            the same names override them for its own stream; `max_new_tokens` is the limit.
        chat: Put each text as a user's message into the tokenizer's chat template.
        trust_remote_code: Run Python code in the folder.
    """

    max_batch_rows = 32
    writes_inputs = False

    def __init__(
        self,
        path: Path,
        *,
        task: str | None = None,
        device: str = "auto",
        dtype: str | None = None,
        pooling: str | None = None,
        aggregation: str = "simple",
        generation: Mapping[str, Any] | None = None,
        chat: bool = False,
        trust_remote_code: bool = False,
    ) -> None:
        if pooling not in (None, "mean", "cls", "none"):
            raise ConfigError(f"{path}: option 'pooling' must be mean, cls or none, not {pooling!r}")
        self._path = path
        self._name = path.resolve().name
        self._task = task or read_task(path)
        self._device_name = device
        self._dtype = parse_dtype(dtype, "dtype", self._name)
        self._pooling = pooling
        self._aggregation = aggregation
        self._generation = {"max_new_tokens": NEW_TOKENS, **(generation or {})}
        self._chat = chat
        self._local = {"local_files_only": True, "trust_remote_code": trust_remote_code is True}
        self._model: Any = None
        self._tokenizer: Any = None
        self._predict_texts: _PredictTexts | None = None
        self.inputs = (TensorSpec("text", "BYTES", (-1,)),)
        if self._task != "text-generation":
            # Without this the model would count as one with streams.
            vars(self)["predict_stream"] = super().predict_stream

    @override
    def load(self) -> None:
        makers: dict[str, Callable[[], _PredictTexts]] = {
            "text-classification": self._classifier,
            "feature-extraction": self._extractor,
            "token-classification": self._token_classifier,
            "text-generation": self._generator,
        }
        self._device = parse_device(self._device_name, self._name)
        try:
            self._predict_texts = makers.get(self._task, self._any_pipeline)()
        except (ModelLoadError, ConfigError):
            raise
        except Exception as error:
            raise ModelLoadError(
                self._name, f"{self._path} does not load for {self._task}: {summarize_error(error)}"
            ) from error

    @override
    def close(self) -> None:
        self._predict_texts = None
        self._model = self._tokenizer = None

    @override
    def predict(self, text: Array) -> Mapping[str, Array]:
        """Predict a batch of texts. Raises RowError for texts that are not UTF-8."""
        assert self._predict_texts is not None
        texts = decode_text("text", text)
        return self._predict_texts([str(t) for t in texts.reshape(len(texts))])

    # Pipelines

    def _pipeline(self, **settings: Any) -> Any:
        """Return the task's pipeline around a model and a tokenizer from the folder only."""
        _, task, _ = transformers.pipelines.check_task(self._task)
        self._read(task["pt"][0])
        return transformers.pipeline(
            self._task, model=self._model, tokenizer=self._tokenizer, device=self._device, **settings
        )

    def _classifier(self) -> _PredictTexts:
        found = self._pipeline(top_k=None)
        labels = [found.model.config.id2label[index] for index in range(found.model.config.num_labels)]
        columns = {label: index for index, label in enumerate(labels)}
        longest = _longest(found.tokenizer)
        self.outputs = (
            TensorSpec("label", "BYTES", (-1,)),
            TensorSpec("score", "FP32", (-1,)),
            TensorSpec("scores", "FP32", (-1, len(labels))),
        )

        def predict_texts(texts: list[str]) -> Mapping[str, Array]:
            scores = np.zeros((len(texts), len(labels)), np.float32)
            results = found(texts, batch_size=len(texts), truncation=True, max_length=longest)
            for row, classes in enumerate(results):
                for entry in classes:
                    scores[row, columns[entry["label"]]] = entry["score"]
            best = scores.argmax(axis=1)
            return {
                "label": text_array([labels[index] for index in best]),
                "score": scores[np.arange(len(texts)), best],
                "scores": scores,
            }

        return predict_texts

    def _token_classifier(self) -> _PredictTexts:
        found = self._pipeline(aggregation_strategy=self._aggregation)
        self.outputs = (TensorSpec("entities", "BYTES", (-1,)),)
        return lambda texts: {"entities": encode_json_texts(found(texts, batch_size=len(texts)))}

    def _any_pipeline(self) -> _PredictTexts:
        found = self._pipeline()
        self.outputs = (TensorSpec("output", "BYTES", (-1,)),)
        return lambda texts: {"output": encode_json_texts(found(texts, batch_size=len(texts)))}

    # Direct use of models and tokenizers

    def _read(self, model_class: Any) -> None:
        path = str(self._path)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(path, **self._local)
        dtype = "auto" if self._dtype is None else self._dtype
        model = model_class.from_pretrained(path, dtype=dtype, **self._local)
        self._model = model.to(self._device).eval()

    def _extractor(self) -> _PredictTexts:
        self._read(transformers.AutoModel)
        pooling, normalized, longest = read_sentence_settings(self._path)
        pooling = self._pooling or pooling
        longest = min(longest or TOKENS_MAX, _longest(self._tokenizer))
        as_json = pooling == "none"
        size = int(self._model.config.hidden_size)
        self.outputs = (
            TensorSpec("features", "BYTES", (-1,))
            if as_json
            else TensorSpec("embedding", "FP32", (-1, size)),
        )

        def predict_texts(texts: list[str]) -> Mapping[str, Array]:
            inputs = self._tokenizer(
                texts, padding=True, truncation=True, max_length=longest, return_tensors="pt"
            ).to(self._device)
            with torch.inference_mode():
                tokens = self._model(**inputs).last_hidden_state
                mask = inputs["attention_mask"]
                if as_json:
                    pairs = zip(to_numpy(tokens), to_numpy(mask), strict=True)
                    return {
                        "features": encode_json_texts(
                            np.ascontiguousarray(t[m.astype(bool)]) for t, m in pairs
                        )
                    }
                return {"embedding": to_numpy(_pooled(tokens, mask, pooling, normalized=normalized).float())}

        return predict_texts

    def _generator(self) -> _PredictTexts:
        self._read(transformers.AutoModelForCausalLM)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self.outputs = (TensorSpec("text", "BYTES", (-1,)),)

        def predict_texts(texts: list[str]) -> Mapping[str, Array]:
            inputs = self._prompts(texts)
            made = self._model.generate(
                **inputs, **self._generation, pad_token_id=self._tokenizer.pad_token_id
            )
            new = made[:, inputs["input_ids"].shape[1] :]
            return {"text": text_array(self._tokenizer.batch_decode(new, skip_special_tokens=True))}

        return predict_texts

    def _prompts(self, texts: list[str]) -> Any:
        if self._chat:
            texts = [
                self._tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
                )
                for text in texts
            ]
        # Padding on the left lets the generated text follow the prompt in every row.
        return self._tokenizer(
            texts, padding=True, padding_side="left", return_tensors="pt", add_special_tokens=not self._chat
        ).to(self._device)

    @override
    def predict_stream(self, requests: Iterator[InferRequest], /) -> Iterator[Mapping[str, Any]]:
        """Yield the generated pieces of each request's one text, in output ``text``.

        Raises:
            ModelInputError: A request has another number of texts, or unsuitable parameters.
        """
        for request in requests:
            texts = self._one_text(request)
            settings = {**self._generation, **_request_settings(self._name, request, self._generation)}
            with closing(self._pieces(self._prompts(texts), settings)) as pieces:
                for piece in pieces:
                    yield {"text": text_array([piece])}

    def _one_text(self, request: InferRequest) -> list[str]:
        try:
            inputs = decode_text("text", request["text"])
        except KeyError as error:
            raise ModelInputError(self._name, str(error.args[0])) from None
        except RowError as error:
            raise ModelInputError(self._name, str(error)) from None
        if inputs.size != 1:
            raise ModelInputError(self._name, f"a stream takes one text, but input 'text' has {inputs.size}")
        return [str(inputs.reshape(1)[0])]

    def _pieces(self, prompt: Any, settings: Mapping[str, Any]) -> Generator[str]:
        """Yield text generated in a thread. The thread ends with this generator in every case."""
        streamer = TokenQueue()
        is_cancelled = threading.Event()
        errors: list[BaseException] = []

        def should_stop(tokens: Any, _scores: Any, **_: Any) -> Any:
            ended = tokens.new_full((len(tokens),), int(is_cancelled.is_set()))
            return ended.bool()

        def generate() -> None:
            try:
                self._model.generate(
                    **prompt,
                    **settings,
                    streamer=streamer,
                    stopping_criteria=[should_stop],
                    pad_token_id=self._tokenizer.pad_token_id,
                )
            except BaseException as error:  # noqa: BLE001 - raised where the stream is read
                errors.append(error)
            finally:
                streamer.end()

        thread = threading.Thread(target=generate, name=f"headrace-{self._name}-generate", daemon=True)
        thread.start()
        try:
            yield from decode_token_stream(streamer, self._tokenizer)
        finally:
            is_cancelled.set()
            thread.join()
        if errors:
            raise errors[0]


def _longest(tokenizer: Any) -> int:
    """Return the tokenizer's limit of tokens per text, bounded by TOKENS_MAX.

    Tokenizers that do not know it report a number beyond all models; for these the limit is
    TOKENS_MAX.

    Such tokenizers report a number beyond all models.
    """
    return (
        min(int(tokenizer.model_max_length), TOKENS_MAX)
        if tokenizer.model_max_length < 1 << 30
        else TOKENS_MAX
    )


def _pooled(tokens: Any, mask: Any, pooling: str, *, normalized: bool) -> Any:
    """Return one vector per text, made of the vectors of its tokens."""
    if pooling == "cls":
        vectors = tokens[:, 0]
    else:
        weights = mask.unsqueeze(-1).to(tokens.dtype)
        vectors = (tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12) if normalized else vectors


def _request_settings(model: str, request: InferRequest, bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation settings in the request's parameters.

    Raises ModelInputError for unsuitable values.
    """
    settings: dict[str, Any] = {}
    for name, kind in _PER_REQUEST.items():
        if name not in request.parameters:
            continue
        value = request.parameters[name]
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise ModelInputError(model, f"parameter {name!r} must be {kind.__name__}, not {value!r}")
        if name == "max_new_tokens" and not 1 <= value <= bounds[name]:
            raise ModelInputError(model, f"parameter {name!r} must be from 1 to {bounds[name]}, not {value}")
        settings[name] = value
    return settings
