"""Two slots of states, one of which is always whole, and names for what a fit depends on."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from orbitwise.inference.checkpoint import Progress, Slots, State, fingerprint


def state(number: int) -> State:
    tensors = {
        "a": torch.full((2, 3), number / 3, dtype=torch.float64).mT,
        "empty": torch.zeros(0),
        "b": torch.tensor(True),
    }
    return State(tensors, {"step": number, "best": -float("inf")})


def test_the_latest_state_comes_back_once_with_its_layout(tmp_path: Path):
    slots = Slots(tmp_path / "new" / "fit")
    assert not slots.begin()
    assert slots.recall() is None
    for number in range(3):
        slots.write(state(number))
    back = Slots(tmp_path / "new" / "fit")
    assert not back.begin()
    found = back.recall()
    assert found is not None
    assert found.numbers["step"] == 2
    assert found.numbers["best"] == -float("inf")
    assert found.tensors["a"].stride() == state(2).tensors["a"].stride()
    assert all(torch.equal(found.tensors[name], each) for name, each in state(2).tensors.items())
    assert back.recall() is None


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: b"", lambda data: data + b"x"])
def test_a_torn_state_leaves_the_one_before(tmp_path: Path, damage):
    slots = Slots(tmp_path / "fit")
    slots.begin()
    slots.write(state(1))
    slots.write(state(2))
    newest = max(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    newest.write_bytes(damage(newest.read_bytes()))
    back = Slots(tmp_path / "fit")
    back.begin()
    found = back.recall()
    assert found is not None
    assert found.numbers["step"] == 1
    back.write(state(2))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_run_before_that_of_the_state_has_nothing_to_do(tmp_path: Path):
    slots = Slots(tmp_path / "fit")
    slots.begin()
    slots.begin()
    slots.write(state(4))
    back = Slots(tmp_path / "fit")
    assert back.begin()
    assert back.recall() is None
    assert not back.begin()
    assert back.recall() is not None
    assert not back.begin()
    assert back.recall() is None


def test_another_number_of_threads_is_said(tmp_path: Path):
    before = torch.get_num_threads()

    def recalled_and_written(number: int) -> int:
        slots = Slots(tmp_path / "fit")
        slots.begin()
        found = slots.recall()
        slots.write(state(number))
        return -1 if found is None else found.numbers["step"]

    try:
        torch.set_num_threads(1)
        assert [recalled_and_written(0), recalled_and_written(1)] == [-1, 0]
        torch.set_num_threads(2)
        with pytest.warns(UserWarning, match=r"made with 1 thread, and torch uses 2 now.* up to rounding"):
            assert recalled_and_written(2) == 1
        torch.set_num_threads(1)
        with pytest.warns(UserWarning, match="made with 1 and 2 threads"):
            assert recalled_and_written(3) == 2
    finally:
        torch.set_num_threads(before)


def test_a_fingerprint_tells_fits_apart():
    module, generator = nn.Linear(2, 1), torch.Generator().manual_seed(0)
    parts = (module, generator, torch.ones(2), np.ones(3), {"a": 1, "b": [None, "c"]}, 0.5)
    first = fingerprint(*parts)
    assert fingerprint(*parts) == first
    others = [
        (nn.Linear(2, 1), *parts[1:]),
        (module, torch.Generator().manual_seed(1), *parts[2:]),
        (*parts[:2], torch.ones(2, dtype=torch.float64), *parts[3:]),
        (*parts[:3], np.zeros(3), *parts[4:]),
        (*parts[:4], {"a": 1, "b": [None, "d"]}, 0.5),
        (*parts[:5], 0.25),
    ]
    assert len({first, *(fingerprint(*each) for each in others)}) == 7


def test_without_a_folder_there_is_no_progress(tmp_path: Path):
    assert Progress.of(None, 1) is None
    one, other = Progress.of(str(tmp_path), 1), Progress.of(str(tmp_path), 2)
    assert one is not None
    assert other is not None
    assert one.journal.path != other.journal.path
    assert not list(tmp_path.iterdir())
