"""Rows that stay in an array or a file: read as tensors are indexed, told apart, and never held."""

import copy
import pickle

import numpy as np
import pytest
import torch

from orbitwise.inference import stored_rows
from orbitwise.inference.stored_rows import StoredRows, held_rows, is_large, typical_rows


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def values(rng):
    return rng.normal(size=(50, 3)).astype(np.float32)


def stored(values, **settings):
    return StoredRows(values, len(values), values[0].size, **settings)


@pytest.mark.parametrize(
    "index", [slice(3, 9), slice(None, None, 7), slice(40, 70), torch.tensor([4, 4, 0, 49])], ids=str
)
def test_rows_are_read_as_those_of_a_tensor(values, index):
    rows, tensor = stored(values), torch.from_numpy(values).double()
    assert torch.equal(rows[index], tensor[index])
    assert torch.equal((rows - 0.5)[index], tensor[index] - 0.5)
    assert rows.float()[index].dtype == torch.float32
    places = np.array([7, 3, 3, 20] * 15)
    assert torch.equal(rows.at(places)[index], tensor[places][index])
    assert torch.equal(rows.at(places).at(places[:4])[:], tensor[places[places[:4]]])


def test_blocks_are_all_rows(values):
    rows = stored(values)
    assert torch.equal(torch.cat(list(rows.split(8))), rows[:])
    assert torch.equal(held_rows(rows), rows[:])
    assert rows.shape == (50, 3)
    assert rows.to("cpu") is rows


def test_equal_rows_are_found(rng):
    places = rng.integers(0, 20, size=60)
    distinct = rng.normal(size=(20, 2))
    distinct[3] = [0.0, 1.0]
    values = distinct[places]
    values[np.flatnonzero(places == 3)[1:], 0] = -0.0  # zeros of both signs are equal
    rows, place = stored(values).distinct()
    assert len(rows) == len(np.unique(places))
    assert torch.equal(rows[torch.from_numpy(place)], torch.from_numpy(values))
    first = [int(np.flatnonzero(place == each)[0]) for each in range(len(rows))]
    assert first == sorted(first)


def test_distinct_rows_stay_what_they_are(values):
    rows = stored(values)
    same, place = rows.distinct()
    assert same is rows
    assert (place == np.arange(50)).all()


def test_images_are_rows_with_their_channels_first(rng):
    images = rng.integers(0, 256, size=(12, 4, 5, 3), dtype=np.uint8)

    def first(rows):
        return np.ascontiguousarray(np.moveaxis(rows.reshape(-1, 4, 5, 3), -1, 1)).reshape(len(rows), -1)

    rows = stored(images, layout=first)
    wanted = np.moveaxis(images, -1, 1).reshape(12, -1).astype(np.float64)
    assert np.array_equal(rows[2:9].numpy(), wanted[2:9])


def test_a_mapped_file_is_read_and_its_pages_given_back(tmp_path, values, monkeypatch):
    monkeypatch.setattr(stored_rows, "MAPPED_BYTES", 1)
    np.save(tmp_path / "x.npy", values)
    for mode in ("r", "r+", "c"):
        mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
        if mode != "r":
            mapped[5] = 7.0
        rows = stored(mapped)
        assert torch.equal(rows[:], torch.from_numpy(np.array(mapped)).double())
        # changes to a private copy are kept
        assert mode == "r" or float(rows[5:6].sum()) == 21.0


def test_copies_leave_the_contents_out(values):
    rows = stored(values, name="abc")
    assert copy.deepcopy(rows) is rows
    left = pickle.loads(pickle.dumps(rows))
    assert left.shape == rows.shape
    assert repr(left) == repr(rows)
    with pytest.raises(ValueError, match="not part of a copy"):
        left[:2]


def test_some_rows_tell_what_is_typical(rng):
    values = rng.normal(size=(40_000, 2))
    some = typical_rows(stored(values))
    assert 10_000 < len(some) <= 2**14
    assert torch.allclose(some.std(0), torch.ones(2, dtype=torch.float64), atol=0.05)
    assert typical_rows(some) is some


@pytest.mark.parametrize(
    ("num_rows", "width", "wanted"), [(10_000, 10**6, False), (10**6, 8, False), (10**6, 20, True)]
)
def test_many_rows_of_many_numbers_are_large(num_rows, width, wanted):
    assert is_large(num_rows, width) is wanted
