"""A model's files, to be sent to where workers are: other machines do not have this one's disk."""

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.runtimes.load import model_files
from headrace.storage.resolve import Stores

COPY_BYTES_MAX: Final = 1 << 30
"""A larger model is not sent: it has to be where its workers are."""


@dataclass(frozen=True, slots=True)
class ModelCopy:
    """The files of one model, as a tar archive, and how the model is named below the folder that they are unpacked in."""

    spec: str
    archive: bytes = field(repr=False)

    def unpack(self, folder: Path) -> str:
        """Write the files below `folder`; the model's name there."""
        with tarfile.open(fileobj=io.BytesIO(self.archive)) as archive:
            archive.extractall(folder, filter="data")
        return str(folder / self.spec)


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """A copy that lies in a store, where whoever wants it can reach it."""

    spec: str
    uri: str

    def get(self, stores: Stores) -> ModelCopy:
        """The copy. Raises what getting it raises."""
        return ModelCopy(self.spec, stores.for_uri(self.uri).get(self.uri))


def copy_model(spec: str, options: Mapping[str, Any] | None = None) -> ModelCopy | None:
    """A copy of a model that is a file or a folder; None of a module's class, and of one too large to be sent."""
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
