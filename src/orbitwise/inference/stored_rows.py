"""Rows that stay where they are, in an array or a file, and are read in blocks, in double precision.

Engines take them wherever they take a tensor of rows: they index rows, and need nothing else of them.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from orbitwise.functionals.functional import Block, Functional

LARGE_NUMBERS, LARGE_ROWS = 2**23, 10_000
"""Data with more numbers, and more rows, stay where they are: the numbers are 64 MiB in double precision."""
BLOCK_NUMBERS = 2**21
"""Numbers of a block of rows: 16 MiB in double precision."""
SAMPLE_ROWS = 2**14
"""Rows that stand for all where only their typical size matters."""
MAPPED_BYTES = 2**25
"""Files up to this size may stay in memory."""


@final
@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows [n, d] of an array with n as its first dimension, of which nothing is held.

    `layout` reorders the numbers of rows, and `places` are the entries of the array that are rows, all by
    default. `background` is subtracted. `name` identifies the contents, for checkpoints; copies and pickles
    leave the contents out.
    """

    values: NDArray[Any] | None
    count: int
    width: int
    layout: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None
    places: NDArray[np.int64] | None = None
    background: float = 0.0
    dtype: torch.dtype = torch.float64
    name: str = ""
    least: float = 0.0

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"StoredRows({len(self)} x {self.width}, {self.name}, {self.background!r}, {self.dtype})"

    def __deepcopy__(self, memo: object) -> StoredRows:
        return self

    def __reduce__(self) -> tuple[type[StoredRows], tuple[object, ...]]:
        own = (None, None, self.background, self.dtype, self.name, self.least)
        return StoredRows, (None, len(self), self.width, *own)

    @property
    def shape(self) -> torch.Size:
        """[n, d]."""
        return torch.Size((len(self), self.width))

    @property
    def device(self) -> torch.device:
        """Where rows are when they are read."""
        return torch.device("cpu")

    @property
    def rows_at_once(self) -> int:
        """How many rows make a block."""
        return max(1, BLOCK_NUMBERS // self.width)

    def __getitem__(self, index: slice | Tensor) -> Float[Tensor, "m d"]:
        """Some rows, in memory."""
        if self.values is None:
            raise ValueError(
                "The rows of the fit are not part of a copy of the model: fit again for what needs them."
            )
        wanted = index.cpu().numpy() if isinstance(index, Tensor) else index
        if self.places is not None:
            wanted = self.places[wanted]
        part = self.values[wanted]
        rows = np.array(part.reshape(len(part), self.width), dtype=np.float64)
        give_back_pages(self.values)
        if self.layout is not None:
            rows = self.layout(rows)
        if self.background:
            rows -= self.background
        return torch.from_numpy(rows).to(self.dtype)

    def __sub__(self, background: float) -> StoredRows:
        return replace(self, background=self.background + background)

    def split(self, rows_at_once: int) -> Iterator[Float[Tensor, "m d"]]:
        """All rows, some at a time."""
        return (self[start : start + rows_at_once] for start in range(0, len(self), rows_at_once))

    def at(self, places: NDArray[np.int64]) -> StoredRows:
        """Some of the rows, which stay where they are."""
        own = places if self.places is None else self.places[places]
        return replace(self, places=own, count=len(own))

    def distinct(self) -> tuple[StoredRows, NDArray[np.int64]]:
        """The first of each set of equal rows, and for every row the number of its set.

        Rows are compared by digests of 16 bytes each, so that none of them has to be held.
        """
        digests = np.empty((len(self), 2), dtype=np.uint64)
        for start in range(0, len(self), self.rows_at_once):
            # zeros of both signs are equal
            block = self[start : start + self.rows_at_once].numpy() + 0.0
            found = b"".join(blake2b(row, digest_size=16).digest() for row in block)
            digests[start : start + len(block)] = np.frombuffer(found, dtype=np.uint64).reshape(-1, 2)
        order = np.lexsort(digests.T)
        is_new = np.ones(len(self), dtype=bool)
        is_new[1:] = (digests[order[1:]] != digests[order[:-1]]).any(1)
        group = np.cumsum(is_new) - 1
        # the sort is stable, so the first of a set comes first
        first = order[is_new]
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        place = np.empty(len(self), dtype=np.int64)
        place[order] = rank[group]
        return (self if len(first) == len(self) else self.at(np.sort(first))), place

    def min(self) -> float:
        """The least number."""
        return self.least - self.background

    def float(self) -> StoredRows:
        """The same rows in single precision."""
        return replace(self, dtype=torch.float32)

    def to(self, device: str | torch.device) -> StoredRows | Tensor:
        """The same rows on the CPU; other devices have memory of their own, and get all of them."""
        device = torch.device(device)
        if device.type == "cpu":
            return self
        found = torch.empty(self.shape, dtype=self.dtype, device=device)
        for start in range(0, len(self), self.rows_at_once):
            part = slice(start, start + self.rows_at_once)
            found[part] = self[part].to(device)
        return found


Inputs = Tensor | StoredRows
"""Inputs [n, d] of all rows."""


def is_large(num_rows: int, width: int) -> bool:
    """Whether so many rows stay where they are."""
    return num_rows > LARGE_ROWS and num_rows * width > LARGE_NUMBERS


def as_inputs(x: NDArray[np.float64] | StoredRows) -> Inputs:
    """Rows as engines take them."""
    return x if isinstance(x, StoredRows) else torch.from_numpy(x)


def held_rows(x: Inputs) -> Tensor:
    """All rows, in memory."""
    return x[:] if isinstance(x, StoredRows) else x


def typical_rows(x: Inputs) -> Tensor:
    """All rows of a tensor; of stored rows as many as tell their spread, evenly spread over all."""
    if isinstance(x, Tensor):
        return x
    most = max(1024, min(SAMPLE_ROWS, BLOCK_NUMBERS // x.width))
    return x[:: max(1, -(-len(x) // most))]


def atoms_in_blocks(
    functional: Functional, x: Inputs, rows_at_once: int = 8192
) -> Iterator[tuple[slice, Block]]:
    """The atoms of some rows after the other, and which rows they are."""
    for start in range(0, len(x), rows_at_once):
        part = slice(start, start + rows_at_once)
        yield part, functional.atoms(x[part])


def give_back_pages(values: NDArray[Any]) -> None:
    """Let the system forget the pages of a mapped file that were read, so that they do not count as memory.

    They are read again from its cache, or from the disk. Private copies of a file are left alone, because
    changes to them would be lost.
    """
    mapped, mode = _mapping(values)
    if mapped is None or mode not in ("r", "r+", "w+") or len(mapped) < MAPPED_BYTES:
        return
    with contextlib.suppress(AttributeError, OSError, ValueError):
        mapped.madvise(mmap.MADV_DONTNEED)


def _mapping(values: NDArray[Any]) -> tuple[mmap.mmap | None, str]:
    """The mapped file whose numbers an array shows, if there is one, and how it was opened."""
    found: object = values
    mode = ""
    while found is not None:
        if isinstance(found, mmap.mmap):
            return found, mode
        mode = getattr(found, "mode", mode)
        found = getattr(found, "base", None)
    return None, mode
