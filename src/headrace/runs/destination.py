"""Check the destination of a run before anything is read.

Input: the destination as the user wrote it. Output: none, or a ConfigError.
"""

from headrace.core.errors import ConfigError
from headrace.formats.read import is_file_name
from headrace.runs.parts import PART_SUFFIXES
from headrace.runs.settings import TABLES, RunSettings
from headrace.storage.resolve import Stores


def check_folder(destination: str, stores: Stores, settings: RunSettings) -> None:
    """Raise ConfigError if the destination has the name of a file and is not an existing folder.

    A run cannot write one file: it commits whole parts, and a resumption continues after the last
    one.
    """
    if destination.endswith("/") or not is_file_name(destination):
        return
    if next(iter(stores.for_uri(destination).list(f"{destination}/")), None) is not None:
        return
    folder, slash, name = destination.rpartition("/")
    other = f"{folder}{slash}{name.partition('.')[0]}/"
    raise ConfigError(
        f"{destination} is the name of a file, but a run writes a folder of parts, so that it can be "
        f"resumed: write {other} instead (or {destination}/ for a folder of this name). "
        f"{_one_file(destination, other, settings)}For one output file per input file, use headrace transform"
    )


def _one_file(destination: str, folder: str, settings: RunSettings) -> str:
    """Return the sentence with the command that joins the parts, if their format can be joined."""
    suffix, header = PART_SUFFIXES[settings.output.format], settings.output.header
    if settings.output.format in TABLES:
        return ""
    has_header = suffix == "csv" and (settings.read.header == "names" if header is None else header)
    command = "awk 'FNR > 1 || NR == 1'" if has_header else "cat"
    copy = " (copy them to a disk first)" if "://" in destination else ""
    name = destination.rpartition("/")[2] if copy else destination
    return f"To join the parts afterwards{copy}: {command} {folder}part-?????.{suffix} > {name}. "
