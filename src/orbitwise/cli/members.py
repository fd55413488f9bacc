"""An array of an .npz file, some rows at a time: the file may be larger than the memory."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from orbitwise.cli.arrays import DAMAGE, check_inputs, inputs_name, not_plain, npz_arrays

ENDING = ".npy"


@final
@dataclass(frozen=True)
class Member:
    """What the header of an array says; `is_transposed` where columns follow each other in the file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_transposed: bool

    def batches(self, size: int) -> Iterator[NDArray[Any]]:
        """All rows, `size` at a time; of a file that was not cut short, or it is an error."""
        if self.is_transposed:
            # its rows are spread over the whole of it
            whole = npz_arrays(self.path)[self.name]
            yield from (whole[start : start + size] for start in range(0, len(whole), size))
            return
        try:
            yield from self._streamed(size)
        except DAMAGE as error:
            raise not_plain(self.path, error) from error

    def _streamed(self, size: int) -> Iterator[NDArray[Any]]:
        width = self.dtype.itemsize * math.prod(self.shape[1:])
        with zipfile.ZipFile(self.path) as file, file.open(self.name + ENDING) as stream:
            _header(stream)
            for start in range(0, self.shape[0], size):
                count = min(size, self.shape[0] - start)
                content = stream.read(count * width)
                if len(content) < count * width:
                    raise EOFError(f"{self.name} ends in row {start + len(content) // max(width, 1) + 1}")
                yield np.frombuffer(content, dtype=self.dtype).reshape(count, *self.shape[1:])


def inputs_member(path: Path, part: str) -> Member:
    """The inputs in a file, found by their name; only the header is read."""
    try:
        with zipfile.ZipFile(path) as file:
            names = [name.removesuffix(ENDING) for name in file.namelist() if name.endswith(ENDING)]
            name = inputs_name(names, part, str(path))
            with file.open(name + ENDING) as stream:
                shape, is_transposed, dtype = _header(stream)
    except DAMAGE as error:
        raise not_plain(path, error) from error
    check_inputs(name, shape, dtype, str(path))
    return Member(path, name, shape, dtype, is_transposed)


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns follow each other, and type; the stream stands at the first row then."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_transposed, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds objects, which are code")
    return shape, is_transposed, dtype
