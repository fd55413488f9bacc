"""Objects through a file's bytes and back, and files whose structure was edited on purpose."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orbitwise.storage.container import pack, unpack
from orbitwise.storage.objects import Reader, Writer


def again(value: Any) -> Any:
    """The value that comes back from the bytes of a file."""
    writer = Writer()
    written = writer.value(value, "value")
    structure, arrays = unpack(pack({"objects": writer.objects, "value": written}, writer.arrays))
    return Reader(structure["objects"], arrays).value(structure["value"])


def edit(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A file whose structure was changed and whose checksum is right again: hostile, but consistent."""
    structure, arrays = unpack(source.read_bytes())
    change(structure)
    target.write_bytes(pack(structure, arrays))
    return target
