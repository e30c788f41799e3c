import inspect
import pickle

from cases import for_each
from headrace.core import errors


def tree_in_docstring() -> dict[str, int]:
    """Return the class names in the drawn tree, with their depth."""
    found: dict[str, int] = {}
    for line in (errors.__doc__ or "").splitlines():
        stripped = line.lstrip("│├└─ \u00a0")
        name = stripped.split(" ")[0]
        if name.endswith("Error"):
            found[name] = (len(line) - len(stripped)) // 4
    return found


def depth(cls: type) -> int:
    return len(cls.__mro__) - len(errors.HeadraceError.__mro__)


def test_drawn_tree_matches_the_classes():
    classes = {
        name: depth(cls)
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.HeadraceError)
    }
    drawn = tree_in_docstring()
    base = drawn["HeadraceError"]
    assert {name: d - base for name, d in drawn.items()} == classes


def test_with_location_keeps_class_and_known_values():
    error = errors.TruncatedError("ends early", byte=7, member="m.csv").with_location("s3://b/k", "other")
    assert isinstance(error, errors.TruncatedError)
    assert (error.object, error.member, error.byte) == ("s3://b/k", "m.csv", 7)
    assert "m.csv in s3://b/k" in str(error)


def test_messages_name_the_remedy():
    assert "pip install 'headrace[onnx]'" in str(errors.MissingExtraError("onnx", "model.onnx"))
    assert "--resume" in str(errors.OutputExistsError("s3://b/out/"))
    assert "2 in" not in str(errors.CountMismatchError("part 1", records_in=3, out=1, failed=1))


@for_each(
    "error",
    [
        errors.ConfigError("no"),
        errors.MissingExtraError("onnx", "model.onnx"),
        errors.TruncatedError("ends early", byte=7, object="s3://b/k"),
        errors.NotFoundError("s3://b/k", "no such key"),
        errors.InstanceLostError("m", "died", cause="oom", signal="SIGKILL"),
        errors.SequenceFullError("q", "full", retry_after_s=2.0),
        errors.EndpointRefusedError("http://h", "no", status=400),
        errors.CountMismatchError("part 1", records_in=3, out=1, failed=1),
    ],
)
def test_errors_survive_pickling(error):
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))
