"""The file's format: version, checksum, and errors for everything that is not such a file."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from orbitwise.inference.optimise import cost
from orbitwise.storage import StorageError
from orbitwise.storage.container import (
    MOST_BYTES,
    MOST_HEADER,
    brief,
    default_budget,
    pack,
    read,
    unpack,
    with_checksum,
)

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(True), "c": np.zeros((0, 2), dtype=np.int8)}
STRUCTURE = {"estimator": 'say "sha256":"' + "0" * 64 + '"', "numbers": [0.1, 1e-300, -0.0, 2**70]}
DATA = pack(STRUCTURE, ARRAYS)


def test_structure_and_arrays_come_back():
    structure, arrays = unpack(DATA)
    assert structure == STRUCTURE
    assert all(arrays[name].tobytes() == array.tobytes() for name, array in ARRAYS.items())
    assert all(arrays[name].shape == array.shape for name, array in ARRAYS.items())
    assert safetensors.numpy.load(DATA).keys() == ARRAYS.keys()


@given(st.integers(0, 8 * len(DATA) - 1))
def test_every_flipped_bit_is_found(bit: int):
    damaged = bytearray(DATA)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StorageError):
        unpack(bytes(damaged))


@given(st.integers(0, len(DATA) - 1))
def test_every_truncation_is_found(length: int):
    with pytest.raises(StorageError):
        unpack(DATA[:length])


@given(st.binary(max_size=64))
def test_other_bytes_are_refused(data: bytes):
    for each in (data, DATA + data + b"\0"):
        with pytest.raises(StorageError):
            unpack(each)


def test_a_newer_format_says_what_to_do():
    newer = with_checksum(DATA.replace(b'"format_version":"2"', b'"format_version":"3"'))
    with pytest.raises(StorageError, match=r"format version 3.*up to 2: upgrade Orbitwise"):
        unpack(newer)


def test_other_formats_are_named():
    other = safetensors.numpy.save(ARRAYS, {"format": "pt"})
    for data in (other, safetensors.numpy.save(ARRAYS), pickle.dumps(STRUCTURE), b"\x80" * 1000):
        with pytest.raises(StorageError, match="not a model saved by"):
            unpack(data)
    with pytest.raises(StorageError, match="empty"):
        unpack(b"")


def test_deep_nesting_is_refused():
    deep = b"[" * 100_000 + b"]" * 100_000
    for header in (deep, b'{"__metadata__":' + deep + b"}"):
        with pytest.raises(StorageError):
            unpack(len(header).to_bytes(8, "little") + header)
    text = "[" * 100_000
    data = safetensors.numpy.save(
        {}, {"format": "orbitwise", "format_version": "1", "sha256": "0" * 64, "structure": text}
    )
    with pytest.raises(StorageError, match="cannot be read"):
        unpack(with_checksum(data))


def test_what_is_no_regular_file_is_refused(tmp_path: Path):
    with pytest.raises(StorageError, match="There is no file"):
        read(tmp_path / "none")
    with pytest.raises(StorageError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(StorageError, match="cannot be read"):
        read("a\0b")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(StorageError, match="not a regular file"):
            read(tmp_path / "pipe")


def test_messages_are_short_and_printable():
    assert brief("a\x1b[31m\nb") == "a?[31m b"
    assert len(brief("x" * 10_000)) < 250
    assert brief(KeyError()) == "KeyError"


def test_arrays_are_views_of_the_bytes():
    _, arrays = unpack(DATA)
    assert not arrays["a"].flags.owndata
    other = safetensors.numpy.load(DATA)
    assert all(np.array_equal(arrays[name], other[name]) for name in ARRAYS)


def resealed(change: dict) -> bytes:
    """The file with other entries in its header."""
    length = int.from_bytes(DATA[:8], "little")
    header = json.dumps({**json.loads(DATA[8 : 8 + length]), **change}, separators=(",", ":")).encode()
    return with_checksum(len(header).to_bytes(8, "little") + header + DATA[8 + length :])


A = {"dtype": "F64", "shape": [2, 3], "data_offsets": [0, 48]}


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {**A, "dtype": "F8"},
        {**A, "dtype": None},
        {**A, "shape": [2, 4]},
        {**A, "shape": [-2, -3]},
        {**A, "shape": [2.0, 3]},
        {**A, "shape": [1] * 100},
        {**A, "shape": [2**32, 2**32]},
        {**A, "data_offsets": [0, 47]},
        {**A, "data_offsets": [8, 56]},
        {**A, "data_offsets": [-48, 0]},
        {**A, "data_offsets": "ab"},
        {**A, "more": 1},
        {"dtype": "F64", "shape": [0, 10**12], "data_offsets": [0, 0]},
    ],
    ids=str,
)
def test_headers_that_do_not_account_for_the_bytes_are_refused(entry: Any):
    assert unpack(resealed({"a": A}))[0] == STRUCTURE
    with pytest.raises(StorageError, match="is damaged"):
        unpack(resealed({"a": entry}))
    with pytest.raises(StorageError, match="is damaged"):
        unpack(resealed({"extra": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}))


def test_a_long_header_is_refused_before_it_is_read(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes((MOST_HEADER + 1).to_bytes(8, "little"))
    os.truncate(path, 2 * MOST_HEADER)
    with pytest.raises(StorageError, match=r"its header of .* is longer"):
        read(path)


def test_a_file_over_the_budget_is_refused(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(DATA)
    assert read(path) == read(path, 2 * len(DATA)) == DATA
    with pytest.raises(StorageError, match=r"asks for .* GB of memory"):
        read(path, 2 * len(DATA) - 1)
    with pytest.raises(StorageError, match=rf"orbitwise\.load\(path, max_bytes={2 * len(DATA)}\)"):
        read(path, 1)
    assert 0 < default_budget() <= MOST_BYTES


def test_the_budget_is_half_of_what_a_container_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "limit").write_text("1048576\n")
    monkeypatch.setattr(cost, "LIMIT", tmp_path / "limit")
    assert default_budget() == 2**19
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": -1, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert cost.machine_memory() is None
    assert default_budget() == MOST_BYTES
