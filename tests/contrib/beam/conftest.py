"""A server shared by several modules."""

from pathlib import Path

import pytest

from servers import models_for_clients
from servers.served import serving


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in ("sums", "other"):
        (folder / name).mkdir()
        (folder / name / "model.toml").write_text('model = "models.py:Sums"\n')
        (folder / name / "models.py").write_text(Path(models_for_clients.__file__).read_text())
    with serving(folder) as served:
        yield served
