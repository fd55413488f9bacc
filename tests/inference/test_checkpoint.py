"""Two slots of states, one of which is always whole, and names for what a fit depends on."""

import errno
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from orbitwise.inference.optimise import checkpoints as checkpoint
from orbitwise.inference.optimise.checkpoints import (
    LENGTH,
    START,
    STATE_MAGIC,
    Progress,
    Slots,
    State,
    fingerprint,
)


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


def written(path: Path, count: int = 2) -> list[Path]:
    slots = Slots(path)
    slots.begin()
    for number in range(1, count + 1):
        slots.write(state(number))
    return slots.paths


def recalled(path: Path) -> int | None:
    back = Slots(path)
    back.begin()
    found = back.recall()
    return None if found is None else found.numbers["step"]


def sealed(numbers: object, tensors: dict[str, torch.Tensor] | bytes) -> bytes:
    """A file with the right checksum, whatever it holds."""
    text = numbers if isinstance(numbers, bytes) else json.dumps(numbers).encode()
    body = tensors if isinstance(tensors, bytes) else safetensors.torch.save(tensors)
    content = len(text).to_bytes(LENGTH, "little") + text + body
    return STATE_MAGIC + hashlib.sha256(content).digest() + content


ONE = {"a": torch.zeros(2, 3)}
RIGHT = {"fit": "fit", "run": 1, "count": 9, "orders": {"a": [0, 1]}}
STRANGE = {
    "no text": sealed(b"\xff\xfe", ONE),
    "no JSON": sealed(b"{", ONE),
    "deep": sealed(b"[" * 100_000, ONE),
    "a list": sealed([], ONE),
    "a number": sealed(1, ONE),
    "no keys": sealed({}, ONE),
    "no tensors": sealed(RIGHT, b"\xff" * 40),
    "huge": sealed(RIGHT, (2**62).to_bytes(8, "little")),
    "no order": sealed({**RIGHT, "orders": {}}, ONE),
    "an order of another": sealed({**RIGHT, "orders": {"b": [0, 1]}}, ONE),
    "a short order": sealed({**RIGHT, "orders": {"a": [0]}}, ONE),
    "an order of words": sealed({**RIGHT, "orders": {"a": "01"}}, ONE),
    "no count": sealed({**RIGHT, "count": "9"}, ONE),
    "a broken count": sealed({**RIGHT, "count": 1e400}, ONE),
    "a negative run": sealed({**RIGHT, "run": -1}, ONE),
    "true": sealed({**RIGHT, "run": True}, ONE),
    "another fit": sealed({**RIGHT, "fit": "other"}, ONE),
    "garbage": b"garbage" * 20,
    "another version": b"orbitwise state 1\n" + bytes(100),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_strange_state_is_ignored_with_a_warning(tmp_path: Path, kind: str):
    paths = written(tmp_path / "fit")
    paths[0].write_bytes(STRANGE[kind])
    with pytest.warns(UserWarning, match="is ignored, and the fit starts from the beginning"):
        assert recalled(tmp_path / "fit") == 1


def test_a_right_state_with_its_seal_is_read(tmp_path: Path):
    (tmp_path / "fit.0").write_bytes(sealed({**RIGHT, "step": 5}, ONE))
    assert recalled(tmp_path / "fit") == 5


def test_a_state_of_another_fit_is_not_believed(tmp_path: Path):
    for number, path in enumerate(written(tmp_path / "one")):
        (tmp_path / f"other.{number}").write_bytes(path.read_bytes())
    with pytest.warns(UserWarning, match="it belongs to another fit"):
        assert recalled(tmp_path / "other") is None


def test_places_that_are_no_files_end_checkpoints_and_not_the_fit(tmp_path: Path):
    (tmp_path / "fit.0").mkdir()
    (tmp_path / "fit.1").symlink_to("fit.1")
    with pytest.warns(UserWarning, match="is ignored"):
        slots = Slots(tmp_path / "fit")
    slots.begin()
    assert slots.recall() is None
    with pytest.warns(UserWarning, match="continues without checkpoints"):
        slots.write(state(1))
    slots.write(state(2))  # says it once


def test_a_link_is_neither_read_nor_written_through(tmp_path: Path):
    written(tmp_path / "fit")
    victims = [
        path.rename(path.with_suffix(f".victim{path.suffix}")) for path in Slots(tmp_path / "fit").paths
    ]
    contents = [victim.read_bytes() for victim in victims]
    for path, victim in zip(sorted(Slots(tmp_path / "fit").paths), victims, strict=True):
        path.symlink_to(victim)
    with pytest.warns(UserWarning, match="starts from the beginning: it is a symbolic link"):
        slots = Slots(tmp_path / "fit")
    slots.begin()
    assert slots.recall() is None
    with pytest.warns(UserWarning, match=r"\(it is a symbolic link\).*continues without checkpoints"):
        slots.write(state(3))
    assert [victim.read_bytes() for victim in victims] == contents


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_leaves_the_state_before(tmp_path, monkeypatch, number):
    slots = Slots(tmp_path / "fit")
    slots.begin()
    slots.write(state(1))

    def full(handle: int) -> None:
        os.ftruncate(handle, START + 3)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match=os.strerror(number)):
        slots.write(state(2))
    monkeypatch.undo()
    assert recalled(tmp_path / "fit") == 1


def test_the_second_of_two_writers_stops(tmp_path: Path):
    written(tmp_path / "fit")
    one, other = Slots(tmp_path / "fit"), Slots(tmp_path / "fit")
    one.begin()
    other.begin()
    one.write(state(3))
    with pytest.warns(UserWarning, match="another process writes to it"):
        other.write(state(30))
    one.write(state(4))
    assert recalled(tmp_path / "fit") == 4


def test_states_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), sync(handle)))
    written(tmp_path / "fit", 4)
    assert len(synced) == 6  # four states, and the names of two files


def test_a_state_that_does_not_fit_is_ignored_unless_runs_were_passed_over(tmp_path: Path):
    written(tmp_path / "fit")
    slots = Slots(tmp_path / "fit")
    slots.begin()
    slots.recall()
    with pytest.warns(UserWarning, match=r"fit\.0 is ignored.*other tensors"):
        slots.refuse("it has other tensors")
    slots.begin()
    with pytest.raises(
        ValueError,
        match=r"used \(it has other tensors\): remove the files whose names begin with fit",
    ):
        slots.refuse("it has other tensors")


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


def test_a_slot_that_no_machine_could_hold_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written(tmp_path / "fit")
    assert recalled(tmp_path / "fit") == 2
    monkeypatch.setattr(checkpoint, "machine_memory", lambda: 100.0)
    with pytest.warns(UserWarning, match="more than a quarter of this machine's memory"):
        assert recalled(tmp_path / "fit") is None
