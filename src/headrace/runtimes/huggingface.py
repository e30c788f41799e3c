"""Transformers from a local folder as Models, text generation streamed token by token. The one door to transformers."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.core.errors import ConfigError, MissingExtraError, ModelInputError, ModelLoadError
from headrace.core.model import Model, RowError
from headrace.core.tensor import Array, InferRequest, TensorSpec, text_array
from headrace.runtimes.huggingface_folder import sentence_settings, task_of
from headrace.runtimes.text import decoded_text, json_texts, one_line
from headrace.runtimes.token_stream import TokenQueue, texts_of
from headrace.runtimes.torch import array_of, device_named, dtype_named, inference_mode

try:
    import transformers as _transformers
except ImportError as _error:
    raise MissingExtraError("huggingface", "a Hugging Face model") from _error

transformers: Any = _transformers  # its types are made at import

# Bars on standard error would stand between the log lines of a server.
transformers.utils.logging.disable_progress_bar()

TOKENS_MAX: Final = 512
"""Where a tokenizer does not say how long a text may be."""
NEW_TOKENS: Final = 64
"""How many tokens are generated where nobody says how many."""

_Answer = Callable[[list[str]], Mapping[str, Array]]
_PER_REQUEST: Final = {
    "max_new_tokens": int,
    "do_sample": bool,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "repetition_penalty": float,
}
"""What a request's parameters may say of its own generation."""


class HuggingFaceModel(Model):
    """A folder that ``save_pretrained`` wrote: model, tokenizer and configuration. Nothing is ever downloaded.

    The input is ``text`` ``[n]``. Outputs depend on the task:

    - ``text-classification``: ``label`` and ``score`` ``[n]`` of the best class, ``scores`` ``[n, classes]`` in the configuration's order.
    - ``feature-extraction``: ``embedding`` ``[n, size]``, or with ``pooling = "none"`` ``features``: JSON, a list of numbers a token.
    - ``token-classification``: ``entities`` ``[n]``, a JSON list each.
    - ``text-generation``: ``text`` ``[n]``, what was generated without the prompt. Streamed, the pieces of one prompt as they come;
      a caller who goes ends the generation within a token.
    - any other pipeline over texts: ``output`` ``[n]``, JSON.

    Args:
        path: The folder.
        task: A pipeline's name; None: what the configuration's architecture is for.
        device: ``cpu``, ``cuda:0`` and so on; ``auto`` is a GPU where there is one.
        dtype: float32, bfloat16 or float16; None: as the weights are.
        pooling: ``mean``, ``cls`` or ``none``, for feature-extraction; None: what the folder says (as sentence-transformers
            writes it, with its normalisation and its longest text), else ``mean``.
        aggregation: How token-classification joins tokens: ``none``, ``simple``, ``first``, ``average`` or ``max``.
        generation: Arguments of ``generate``, such as ``max_new_tokens``. A request's parameters of the same names overrule those for its own
            stream, `max_new_tokens` no further than here.
        chat: Each text is what a user says, put into the tokenizer's chat template.
        trust_remote_code: Run Python code that lies in the folder.
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
        self._task = task or task_of(path)
        self._device_name = device
        self._dtype = dtype_named(dtype, "dtype", self._name)
        self._pooling = pooling
        self._aggregation = aggregation
        self._generation = {"max_new_tokens": NEW_TOKENS, **(generation or {})}
        self._chat = chat
        self._local = {"local_files_only": True, "trust_remote_code": trust_remote_code is True}
        self._model: Any = None
        self._tokenizer: Any = None
        self._answer: _Answer | None = None
        self.inputs = (TensorSpec("text", "BYTES", (-1,)),)
        if self._task != "text-generation":
            # So that nobody takes it for a model that streams.
            vars(self)["predict_stream"] = super().predict_stream

    def load(self) -> None:
        """Read tokenizer and weights. ModelLoadError when the folder has not what the task needs."""
        makers: dict[str, Callable[[], _Answer]] = {
            "text-classification": self._classifier,
            "feature-extraction": self._extractor,
            "token-classification": self._token_classifier,
            "text-generation": self._generator,
        }
        self._device = device_named(self._device_name, self._name)
        try:
            self._answer = makers.get(self._task, self._any_pipeline)()
        except (ModelLoadError, ConfigError):
            raise
        except Exception as error:
            raise ModelLoadError(
                self._name, f"{self._path} does not load for {self._task}: {one_line(error)}"
            ) from error

    def close(self) -> None:
        """Let the model go."""
        self._answer = None
        self._model = self._tokenizer = None

    def predict(self, text: Array) -> Mapping[str, Array]:
        """Answer a batch of texts. RowError for those that are not UTF-8."""
        assert self._answer is not None
        texts = decoded_text("text", text)
        return self._answer([str(t) for t in texts.reshape(len(texts))])

    # Pipelines

    def _pipeline(self, **settings: Any) -> Any:
        """The task's pipeline around a model and a tokenizer that were read from the folder, and from nowhere else."""
        _, task, _ = transformers.pipelines.check_task(self._task)
        self._read(task["pt"][0])
        return transformers.pipeline(
            self._task, model=self._model, tokenizer=self._tokenizer, device=self._device, **settings
        )

    def _classifier(self) -> _Answer:
        found = self._pipeline(top_k=None)
        labels = [found.model.config.id2label[index] for index in range(found.model.config.num_labels)]
        columns = {label: index for index, label in enumerate(labels)}
        longest = _longest(found.tokenizer)
        self.outputs = (
            TensorSpec("label", "BYTES", (-1,)),
            TensorSpec("score", "FP32", (-1,)),
            TensorSpec("scores", "FP32", (-1, len(labels))),
        )

        def answer(texts: list[str]) -> Mapping[str, Array]:
            scores = np.zeros((len(texts), len(labels)), np.float32)
            told = found(texts, batch_size=len(texts), truncation=True, max_length=longest)
            for row, classes in enumerate(told):
                for entry in classes:
                    scores[row, columns[entry["label"]]] = entry["score"]
            best = scores.argmax(axis=1)
            return {
                "label": text_array([labels[index] for index in best]),
                "score": scores[np.arange(len(texts)), best],
                "scores": scores,
            }

        return answer

    def _token_classifier(self) -> _Answer:
        found = self._pipeline(aggregation_strategy=self._aggregation)
        self.outputs = (TensorSpec("entities", "BYTES", (-1,)),)
        return lambda texts: {"entities": json_texts(found(texts, batch_size=len(texts)))}

    def _any_pipeline(self) -> _Answer:
        found = self._pipeline()
        self.outputs = (TensorSpec("output", "BYTES", (-1,)),)
        return lambda texts: {"output": json_texts(found(texts, batch_size=len(texts)))}

    # Models and tokenizers of our own

    def _read(self, model_class: Any) -> None:
        path = str(self._path)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(path, **self._local)
        dtype = "auto" if self._dtype is None else self._dtype
        model = model_class.from_pretrained(path, dtype=dtype, **self._local)
        self._model = model.to(self._device).eval()

    def _extractor(self) -> _Answer:
        self._read(transformers.AutoModel)
        pooling, normalized, longest = sentence_settings(self._path)
        pooling = self._pooling or pooling
        longest = min(longest or TOKENS_MAX, _longest(self._tokenizer))
        as_json = pooling == "none"
        size = int(self._model.config.hidden_size)
        self.outputs = (
            TensorSpec("features", "BYTES", (-1,))
            if as_json
            else TensorSpec("embedding", "FP32", (-1, size)),
        )

        def answer(texts: list[str]) -> Mapping[str, Array]:
            given = self._tokenizer(
                texts, padding=True, truncation=True, max_length=longest, return_tensors="pt"
            ).to(self._device)
            with inference_mode():
                tokens = self._model(**given).last_hidden_state
                mask = given["attention_mask"]
                if as_json:
                    kept = zip(array_of(tokens), array_of(mask), strict=True)
                    return {"features": json_texts(np.ascontiguousarray(t[m.astype(bool)]) for t, m in kept)}
                return {"embedding": array_of(_pooled(tokens, mask, pooling, normalized=normalized).float())}

        return answer

    def _generator(self) -> _Answer:
        self._read(transformers.AutoModelForCausalLM)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self.outputs = (TensorSpec("text", "BYTES", (-1,)),)

        def answer(texts: list[str]) -> Mapping[str, Array]:
            given = self._prompts(texts)
            made = self._model.generate(
                **given, **self._generation, pad_token_id=self._tokenizer.pad_token_id
            )
            new = made[:, given["input_ids"].shape[1] :]
            return {"text": text_array(self._tokenizer.batch_decode(new, skip_special_tokens=True))}

        return answer

    def _prompts(self, texts: list[str]) -> Any:
        if self._chat:
            texts = [
                self._tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
                )
                for text in texts
            ]
        # Left, so that what is generated follows on the prompt of every row.
        return self._tokenizer(
            texts, padding=True, padding_side="left", return_tensors="pt", add_special_tokens=not self._chat
        ).to(self._device)

    def predict_stream(self, requests: Iterator[InferRequest], /) -> Iterator[Mapping[str, Any]]:
        """The pieces of each request's one text, in output ``text``, as they are generated.

        Raises ModelInputError for a request of another number of texts, or with parameters that do not fit.
        """
        for request in requests:
            texts = self._one_text(request)
            settings = {**self._generation, **_own_settings(self._name, request, self._generation)}
            with closing(self._pieces(self._prompts(texts), settings)) as pieces:
                for piece in pieces:
                    yield {"text": text_array([piece])}

    def _one_text(self, request: InferRequest) -> list[str]:
        try:
            given = decoded_text("text", request["text"])
        except KeyError as error:
            raise ModelInputError(self._name, str(error.args[0])) from None
        except RowError as error:
            raise ModelInputError(self._name, str(error)) from None
        if given.size != 1:
            raise ModelInputError(self._name, f"a stream is of one text, but input 'text' has {given.size}")
        return [str(given.reshape(1)[0])]

    def _pieces(self, prompt: Any, settings: Mapping[str, Any]) -> Generator[str]:
        """Generate in a thread of its own, which ends with this generator, however that ends."""
        streamer = TokenQueue()
        gone = threading.Event()
        raised: list[BaseException] = []

        def stops(tokens: Any, _scores: Any, **_: Any) -> Any:
            ended = tokens.new_full((len(tokens),), int(gone.is_set()))
            return ended.bool()

        def generate() -> None:
            try:
                self._model.generate(
                    **prompt,
                    **settings,
                    streamer=streamer,
                    stopping_criteria=[stops],
                    pad_token_id=self._tokenizer.pad_token_id,
                )
            except BaseException as error:  # noqa: BLE001 - raised where the stream is read
                raised.append(error)
            finally:
                streamer.end()

        thread = threading.Thread(target=generate, name=f"headrace-{self._name}-generate", daemon=True)
        thread.start()
        try:
            yield from texts_of(streamer, self._tokenizer)
        finally:
            gone.set()
            thread.join()
        if raised:
            raise raised[0]


def _longest(tokenizer: Any) -> int:
    """How many tokens a text may have; tokenizers that do not know name a number beyond all models."""
    return (
        min(int(tokenizer.model_max_length), TOKENS_MAX)
        if tokenizer.model_max_length < 1 << 30
        else TOKENS_MAX
    )


def _pooled(tokens: Any, mask: Any, pooling: str, *, normalized: bool) -> Any:
    """One vector a text, of the vectors of its tokens."""
    if pooling == "cls":
        vectors = tokens[:, 0]
    else:
        weights = mask.unsqueeze(-1).to(tokens.dtype)
        vectors = (tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12) if normalized else vectors


def _own_settings(model: str, request: InferRequest, bounds: Mapping[str, Any]) -> dict[str, Any]:
    """What the request's parameters say of generation, checked."""
    own: dict[str, Any] = {}
    for name, kind in _PER_REQUEST.items():
        if name not in request.parameters:
            continue
        value = request.parameters[name]
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise ModelInputError(model, f"parameter {name!r} must be {kind.__name__}, not {value!r}")
        if name == "max_new_tokens" and not 1 <= value <= bounds[name]:
            raise ModelInputError(model, f"parameter {name!r} must be from 1 to {bounds[name]}, not {value}")
        own[name] = value
    return own
