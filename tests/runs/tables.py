"""Tables of each format that tests write to: their names as outputs, their rows and their commits."""

from pathlib import Path
from typing import Any

import pytest

FORMATS = ("delta", "iceberg")


class DeltaTables:
    """Tables in folders."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        del patch
        self.library: Any = pytest.importorskip("deltalake")
        self.folder = folder / "table"
        self.name = f"delta:{self.folder}"

    def create(self, schema: Any, **options: Any) -> None:
        self.library.DeltaTable.create(self.folder, self.library.Schema.from_arrow(schema), **options)

    def read(self, back: int = 0) -> Any:
        """Return the rows after all commits, or before the last `back` of them."""
        table = self.library.DeltaTable(self.folder)
        table.load_as_version(table.version() - back)
        return table.to_pyarrow_table()

    def commits(self) -> int:
        return self.library.DeltaTable(self.folder).version() + 1

    def exists(self) -> bool:
        return self.library.DeltaTable.is_deltatable(str(self.folder))


class IcebergTables:
    """Tables of a catalog in SQLite."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        catalog = pytest.importorskip("pyiceberg.catalog")
        from pyiceberg.utils.config import Config

        for name, value in self.environ(folder).items():
            patch.setenv(name, value)
        # pyiceberg reads its configuration at its import.
        patch.setattr(catalog, "_ENV_CONFIG", Config())
        self.catalog: Any = catalog.load_catalog("lake")
        self.catalog.create_namespace_if_not_exists("scores")
        self.folder = folder / "warehouse" / "scores" / "table"
        self.name = "iceberg:lake/scores.table"

    @staticmethod
    def environ(folder: Path) -> dict[str, str]:
        (folder / "warehouse").mkdir(exist_ok=True)
        prefix = "PYICEBERG_CATALOG__LAKE__"
        return {
            f"{prefix}TYPE": "sql",
            f"{prefix}URI": f"sqlite:///{folder}/catalog.db",
            f"{prefix}WAREHOUSE": f"file://{folder}/warehouse",
        }

    def table(self) -> Any:
        return self.catalog.load_table("scores.table")

    def create(self, schema: Any, **options: Any) -> None:
        self.catalog.create_table("scores.table", schema=schema, **options)

    def read(self, back: int = 0) -> Any:
        """Return the rows after all commits, or before the last `back` of them."""
        table = self.table()
        if not back:
            return table.scan().to_arrow()
        ids = list(dict.fromkeys(entry.snapshot_id for entry in table.history()))
        return table.scan(snapshot_id=ids[-1 - back]).to_arrow()

    def commits(self) -> int:
        return len(self.table().metadata.metadata_log) + 1

    def exists(self) -> bool:
        return self.catalog.table_exists("scores.table")


def open_tables(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """Return the tables of a format, or skip the test without its library."""
    return (DeltaTables if kind == "delta" else IcebergTables)(folder, patch)
