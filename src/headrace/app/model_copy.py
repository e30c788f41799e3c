"""Pack the files of a model, so that workers on other machines can load it."""

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.runtimes.load import model_files
from headrace.storage.resolve import Stores

COPY_BYTES_MAX: Final = 1 << 30
"""The size limit of a copied model. A larger model must exist on the workers' machines."""


@dataclass(frozen=True, slots=True)
class ModelCopy:
    """The files of one model as a tar archive.

    `spec` is the model's name relative to the folder of the unpacked files.
    """

    spec: str
    archive: bytes = field(repr=False)

    def unpack(self, folder: Path) -> str:
        """Unpack the files below `folder` and return the model's name there."""
        with tarfile.open(fileobj=io.BytesIO(self.archive)) as archive:
            archive.extractall(folder, filter="data")
        return str(folder / self.spec)


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """A reference to a `ModelCopy` whose archive is an object in a store."""

    spec: str
    uri: str

    def get(self, stores: Stores) -> ModelCopy:
        """Return the copy. Raise the store's error if the object cannot be read."""
        return ModelCopy(self.spec, stores.for_uri(self.uri).get(self.uri))


def copy_model(spec: str, options: Mapping[str, Any] | None = None) -> ModelCopy | None:
    """Return a copy of a model that is a file or folder.

    Return None for a class of an importable module, and for files above `COPY_BYTES_MAX`.
    """
    files = model_files(spec, options)
    if not files or _bytes_of(files) > COPY_BYTES_MAX:
        return None
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in files:
            archive.add(path, path.relative_to(files[0].parent))
    named = Path(spec).name
    return ModelCopy(named, buffer.getvalue())


def _bytes_of(files: tuple[Path, ...]) -> int:
    inside = (path for top in files for path in ([top] if top.is_file() else top.rglob("*")))
    return sum(path.stat().st_size for path in inside if path.is_file())
