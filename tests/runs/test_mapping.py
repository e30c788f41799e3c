import numpy as np
import pytest

from cases import for_each
from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.read_options import ReadOptions
from headrace.runs.mapping import Mapper
from headrace.runs.settings import MappingOptions

NUMBERS = TensorSpec("x", "FP32", (-1, 2))
ANY_WIDTH = TensorSpec("x", "FP32", (-1, -1))
TEXT = TensorSpec("t", "BYTES", (-1,))


def block_of(*records: str, name: str = "a.csv", names: tuple[str, ...] | None = None) -> Block:
    raw = [r.encode() for r in records]
    ends = np.cumsum([len(r) + 1 for r in raw], dtype=np.int64) - 1
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    return Block(Position(f"memory://b/{name}"), b"\n".join(raw) + b"\n", starts, ends, column_names=names)


def mapper(*inputs: TensorSpec, schema=None, read: ReadOptions | None = None, **mapping) -> Mapper:
    return Mapper(ModelMetadata("m", inputs=inputs), MappingOptions(**mapping), read or ReadOptions(), schema)


def values(decoded) -> dict[str, list]:
    return {name: data.tolist() for name, data in decoded.tensors.items()}


# CSV


def test_all_columns_feed_the_only_input():
    assert values(mapper(NUMBERS).decode(block_of("1,2", "3,4"))) == {"x": [[1, 2], [3, 4]]}


def test_undeclared_model_receives_all_columns_as_float32():
    (tensor,) = mapper().decode(block_of("1,2,3")).tensors.values()
    assert (tensor.dtype, tensor.shape) == (np.float32, (1, 3))


def test_scalar_input_takes_one_column():
    assert values(mapper(TensorSpec("x", "FP32", (-1,))).decode(block_of("1", "2"))) == {"x": [1, 2]}


def test_columns_are_selected_in_the_requested_order():
    block = block_of("1,2,3", names=("a", "b", "c"))
    assert values(mapper(NUMBERS, columns=("c", "a")).decode(block)) == {"x": [[3, 1]]}
    assert values(mapper(NUMBERS, columns=(1, 0)).decode(block)) == {"x": [[2, 1]]}


def test_inputs_take_one_column_each_by_header_order_or_choice():
    age, name = TensorSpec("age", "INT64", (-1, 1)), TensorSpec("name", "BYTES", (-1, 1))
    named = block_of("Jo,7,x", names=("name", "age", "z"))
    assert values(mapper(age, name).decode(named)) == {"age": [[7]], "name": [["Jo"]]}
    assert values(mapper(age, name).decode(block_of("7,Jo"))) == {"age": [[7]], "name": [["Jo"]]}
    assert values(mapper(age, name, columns=(2, 0)).decode(block_of("Jo,x,7"))) == {
        "age": [[7]],
        "name": [["Jo"]],
    }


@for_each(
    ("inputs", "mapping", "names", "error", "why"),
    [
        ((NUMBERS,), {}, None, ModelInputError, "takes 2 numbers per record.*have 3 columns.*--columns"),
        ((NUMBERS,), {}, ("a", "b", "c"), ModelInputError, r"have 3 columns \(a, b, c\)"),
        (
            (NUMBERS,),
            {"columns": (0,)},
            None,
            ModelInputError,
            "takes 2 numbers per record, but --columns names 1",
        ),
        ((TensorSpec("t", "BYTES", (-1, 3)),), {"columns": ()}, None, None, ""),
        (
            (TEXT, TEXT),
            {"text_column": 0},
            None,
            ModelInputError,
            "--text-column is one input.*several: t, t",
        ),
        ((TEXT, NUMBERS), {"columns": (0,)}, None, ModelInputError, "2 inputs, but --columns names 1"),
        ((TEXT, NUMBERS), {}, ("t", "b", "c"), ConfigError, "the header has no column 'x' .it has t, b, c"),
    ],
)
def test_unfit_columns_are_refused_at_the_first_block(inputs, mapping, names, error, why):
    block = block_of("1,2,3", names=names)
    if error is None:
        mapper(*inputs, **mapping).decode(block)
        return
    with pytest.raises(error, match=why):
        mapper(*inputs, **mapping).decode(block)


def test_ragged_first_record_does_not_refuse_the_source():
    decoded = mapper(NUMBERS).decode(block_of("oops", "1,2"))
    assert (values(decoded), [f.why for f in decoded.failures]) == (
        {"x": [[1, 2]]},
        ["has 1 column, 2 expected"],
    )


def test_delimiter_is_chosen_per_file():
    used = mapper(NUMBERS)
    assert values(used.decode(block_of("1\t2", name="a.tsv"))) == {"x": [[1, 2]]}
    assert values(used.decode(block_of("3,4", name="b.csv"))) == {"x": [[3, 4]]}
    # The joined output lines have the delimiter of the first file.
    assert used.dialect.delimiter == b"\t"


# JSON Lines


def test_input_takes_the_field_of_its_name_or_the_record():
    assert values(mapper(NUMBERS).decode(block_of('{"x": [1, 2]}', name="a.jsonl"))) == {"x": [[1, 2]]}
    assert values(mapper(NUMBERS).decode(block_of("[1, 2]", name="a.jsonl"))) == {"x": [[1, 2]]}


def test_scalar_fields_are_stacked_in_the_requested_order():
    block = block_of('{"p": 1, "q": 2}', name="a.jsonl")
    assert values(mapper(NUMBERS, columns=("q", "p")).decode(block)) == {"x": [[2, 1]]}


def test_invalid_json_line_does_not_decide():
    decoded = mapper(NUMBERS).decode(block_of("oops", '{"x": [1, 2]}', name="a.jsonl"))
    assert values(decoded) == {"x": [[1, 2]]}
    assert len(decoded.failures) == 1


def test_missing_fields_error_lists_existing_fields():
    with pytest.raises(ModelInputError, match=r"it takes x, but .* have the fields p, q: choose fields"):
        mapper(NUMBERS).decode(block_of('{"p": 1, "q": 2}', name="a.jsonl"))


def test_json_object_is_decoded_like_a_line():
    text = '{\n"x": [\n1,\n2]\n}'
    assert values(mapper(NUMBERS).decode(block_of(text, name="a.json"))) == {"x": [[1, 2]]}


def test_lines_feed_the_only_input_unchanged():
    read = ReadOptions(format="line")
    assert values(mapper(TEXT, read=read).decode(block_of("a, b", "é"))) == {"t": ["a, b", "é"]}
    column = TensorSpec("t", "BYTES", (-1, 1))
    assert values(mapper(column, read=read).decode(block_of("a"))) == {"t": [["a"]]}
    metadata = ModelMetadata("m", inputs=(TEXT,), bytes_as="bytes")
    assert values(Mapper(metadata, MappingOptions(), read).decode(block_of("a"))) == {"t": [b"a"]}


def test_lines_are_refused_for_numeric_inputs():
    with pytest.raises(ModelInputError, match=r"input 'x' takes FP32, but a line is text: .*--format .*csv"):
        mapper(NUMBERS, read=ReadOptions(format="line")).decode(block_of("1,2"))


# Decisions of the first records


def test_whole_object_is_one_value():
    spec = TensorSpec("b", "BYTES", (-1,))
    block = Block(Position("memory://b/x"), b"\0\1", np.array([0]), np.array([2]))
    used = mapper(spec, read=ReadOptions(format="whole"))
    assert values(used.decode(block)) == {"b": [b"\0\1"]}


def test_media_feeds_the_only_input_in_the_models_type():
    spec = TensorSpec("x", "FP32", (-1, 3, 2, 2))
    pixels = np.full((1, 2, 2, 3), 255, np.uint8)
    block = Block(
        Position("memory://b/x.png"), starts=np.array([0]), ends=np.array([0]), columns={"image": pixels}
    )
    (tensor,) = mapper(spec).decode(block).tensors.values()
    assert (tensor.shape, tensor.dtype, float(tensor.max())) == ((1, 3, 2, 2), np.float32, 1.0)


@for_each(
    ("inputs", "mapping", "first", "later"),
    [
        # The width
        ((ANY_WIDTH,), {}, block_of("1,2"), block_of("1,2,3")),
        ((NUMBERS,), {}, block_of("1,2"), block_of("1,2,3")),
        ((NUMBERS,), {"columns": (0, 1)}, block_of("1,2"), block_of("1,2,3")),
        # The names: a file that lacks one fails, whether or not a resumed run reads it first.
        (
            (NUMBERS,),
            {"columns": ("a", "b")},
            block_of("1,2", names=("a", "b")),
            block_of("1,2", names=("p", "q")),
        ),
        (
            (TEXT, TensorSpec("b", "FP32", (-1,))),
            {},
            block_of("1,2", names=("t", "b")),
            block_of("1,2", names=("p", "q")),
        ),
        # JSON: whole records or fields, and the shape.
        (
            (NUMBERS,),
            {},
            block_of('{"x": [1, 2]}', name="a.jsonl"),
            block_of("[1, 2]", name="a.jsonl"),
        ),
        (
            (ANY_WIDTH,),
            {},
            block_of("[1, 2]", name="a.jsonl"),
            block_of("[1, 2, 3]", name="a.jsonl"),
        ),
        # With a filter: the selection, and the width of the records.
        (
            (ANY_WIDTH,),
            {"input_filter": "$.f"},
            block_of('{"f": [1, 2]}', name="a.jsonl"),
            block_of('{"g": [1, 2]}', name="a.jsonl"),
        ),
        ((NUMBERS,), {"input_filter": "$[1:]"}, block_of("1,2,3"), block_of("1,2,3,4")),
        ((NUMBERS,), {"input_filter": "$[0,2]"}, block_of("1,2,3"), block_of("1,2")),
        (
            (NUMBERS,),
            {"input_filter": "$['b','a']"},
            block_of("1,2", names=("a", "b")),
            block_of("1,2", names=("p", "q")),
        ),
    ],
)
def test_later_mismatch_fails_alike_before_and_after_resume(inputs, mapping, first, later):
    undisturbed = mapper(*inputs, **mapping)
    undisturbed.decode(first)
    resumed = mapper(*inputs, **mapping, schema=undisturbed.schema)
    for used in (undisturbed, resumed):
        decoded = used.decode(later)
        assert len(decoded.failures) == 1
        assert {len(t) for t in decoded.tensors.values()} == {0}
    assert [f.why for f in resumed.decode(later).failures] == [
        f.why for f in undisturbed.decode(later).failures
    ]
    assert (resumed.kind, resumed.input_names, resumed.dialect) == (
        undisturbed.kind,
        undisturbed.input_names,
        undisturbed.dialect,
    )


# Input filters


def test_filtered_csv_columns_feed_the_model():
    assert values(mapper(NUMBERS, input_filter="$[1:]").decode(block_of("id,1,2", "ie,3,4"))) == {
        "x": [[1, 2], [3, 4]]
    }
    assert values(mapper(ANY_WIDTH, input_filter="$[-1,1]").decode(block_of("id,1,2"))) == {"x": [[2, 1]]}
    assert values(mapper(input_filter="$[1:]").decode(block_of("id,1,2"))) == {"x": [[1, 2]]}
    named = block_of("id,1,2", names=("i", "a", "b"))
    assert values(mapper(NUMBERS, input_filter="$['b','a']").decode(named)) == {"x": [[2, 1]]}


def test_inclusive_slices_include_the_last_column():
    block = block_of("id,1,2,3")
    assert values(mapper(NUMBERS, input_filter="$[1:2]", slice_end="inclusive").decode(block)) == {
        "x": [[1, 2]]
    }


def test_columns_refer_to_the_filtered_record():
    block = block_of("id,1,2,x", names=("i", "a", "b", "t"))
    assert values(mapper(NUMBERS, input_filter="$[1:]", columns=(1, 0)).decode(block)) == {"x": [[2, 1]]}
    assert values(mapper(NUMBERS, input_filter="$[1:]", columns=("b", "a")).decode(block)) == {"x": [[2, 1]]}
    assert values(mapper(TEXT, input_filter="$[1:]", text_column=-1).decode(block)) == {"t": ["x"]}
    age, name = TensorSpec("a", "INT64", (-1,)), TensorSpec("t", "BYTES", (-1,))
    assert values(mapper(age, name, input_filter="$[1:]").decode(block)) == {"a": [1], "t": ["x"]}
    assert values(mapper(age, name, input_filter="$[2:]").decode(block_of("id,1,2,x"))) == {
        "a": [2],
        "t": ["x"],
    }
    with pytest.raises(ConfigError, match=r"the header has no column 'a' .it has b, t"):
        mapper(age, name, input_filter="$[2:]").decode(block)


def test_ragged_first_record_does_not_refuse_the_filter():
    decoded = mapper(NUMBERS, input_filter="$[1:]").decode(block_of("oops", "id,1,2"))
    assert (values(decoded), [f.why for f in decoded.failures]) == (
        {"x": [[1, 2]]},
        ["has 1 column, 3 expected"],
    )


@for_each(
    ("options", "block", "error", "why"),
    [
        ({"input_filter": "$[1:]"}, block_of("1,2,3,4"), ModelInputError, r"\$\[1:\] selects 3 of 4 columns"),
        (
            {"input_filter": "$[7]"},
            block_of("1,2,3"),
            ModelInputError,
            "there is no column 7: records have 3",
        ),
        ({"input_filter": "$['a','b']"}, block_of("1,2"), ConfigError, "the records have no header"),
        ({"input_filter": "$.a[0]"}, block_of("1,2"), ConfigError, "does not select columns of CSV"),
        (
            {"input_filter": "$.f"},
            block_of('{"a": 1}', "oops", '{"b": 1}', name="a.jsonl"),
            ConfigError,
            'selects nothing from the records from .*: "f" is missing; the value has "a"',
        ),
        (
            {"input_filter": "$.f"},
            block_of("x", name="a.bin"),
            ConfigError,
            "memory://b/a.bin is read as whole",
        ),
    ],
)
def test_unfit_filters_are_refused(options, block, error, why):
    with pytest.raises(error, match=why):
        mapper(NUMBERS, **options).decode(block)


def test_filtered_json_feeds_the_model():
    block = block_of('{"id": 1, "f": [1, 2], "x": [3, 4]}', name="a.jsonl")
    assert values(mapper(NUMBERS, input_filter="$.f").decode(block)) == {"x": [[1, 2]]}
    assert values(mapper(NUMBERS, input_filter="$['id','x']").decode(block)) == {"x": [[3, 4]]}
    array = block_of("[9, 1, 2]", "[8, 3, 4]", name="a.jsonl")
    assert values(mapper(NUMBERS, input_filter="$[1:]").decode(array)) == {"x": [[1, 2], [3, 4]]}
    inner = block_of('{"r": {"p": 1, "q": 2, "t": "x"}}', name="a.jsonl")
    assert values(mapper(NUMBERS, input_filter="$.r", columns=("q", "p")).decode(inner)) == {"x": [[2, 1]]}
    assert values(mapper(TEXT, input_filter="$.r", text_column="t").decode(inner)) == {"t": ["x"]}


def test_record_without_the_selection_fails_alone():
    decoded = mapper(NUMBERS, input_filter="$.f").decode(
        block_of('{"g": 1}', '{"f": [1, 2]}', "oops", name="a.jsonl")
    )
    assert values(decoded) == {"x": [[1, 2]]}
    assert [(f.kind, f.why[:36]) for f in decoded.failures] == [
        (FailureKind.DECODE, '"f" is missing; the value has "g"'),
        (FailureKind.FORMAT, "not JSON: unexpected character, expe"),
    ]


# Whole records as text


def test_whole_records_feed_a_text_model_on_request():
    used = mapper(TEXT, whole_records=True)
    assert values(used.decode(block_of('1,"b, c"', "2,d"))) == {"t": ['1,"b, c"', "2,d"]}
    assert values(used.decode(block_of('{"a": 1}', name="a.jsonl"))) == {"t": ['{"a": 1}']}
    assert values(used.decode(block_of("[1]", name="a.json"))) == {"t": ["[1]"]}
    assert [found.format for found in used.schema.formats] == ["csv", "jsonl", "json"]


def test_filtered_records_feed_a_text_model():
    used = mapper(TEXT, whole_records=True, input_filter="$[1:]")
    assert values(used.decode(block_of('1,"b, c",3'))) == {"t": ['"b, c",3']}
    used = mapper(TEXT, whole_records=True, input_filter="$.b")
    assert values(used.decode(block_of("1,x", names=("a", "b")))) == {"t": ["x"]}
    decoded = mapper(TEXT, whole_records=True, input_filter="$.b").decode(
        block_of('{"b": [1, 2]}', '{"a": 1}', "not json", name="a.jsonl")
    )
    assert values(decoded) == {"t": ["[1, 2]"]}
    assert [f.position.record for f in decoded.failures] == [1, 2]


def test_record_too_short_for_the_filter_fails():
    decoded = mapper(TEXT, whole_records=True, input_filter="$[2]").decode(block_of("1,2,3", "1"))
    assert values(decoded) == {"t": ["3"]}
    assert [f.position.record for f in decoded.failures] == [1]


def test_text_is_bytes_or_column_vector_as_declared():
    metadata = ModelMetadata("m", inputs=(TensorSpec("t", "BYTES", (-1, 1)),), bytes_as="bytes")
    used = Mapper(metadata, MappingOptions(whole_records=True), ReadOptions())
    assert values(used.decode(block_of("1,2"))) == {"t": [[b"1,2"]]}


def test_whole_records_need_a_text_model_without_named_columns():
    assert values(mapper(NUMBERS, whole_records=True).decode(block_of("1,2"))) == {"x": [[1, 2]]}
    used = mapper(TEXT, whole_records=True, text_column=1)
    assert values(used.decode(block_of("1,two"))) == {"t": ["two"]}
