"""Bad input, and places that cannot be written to: one sentence, an exit status, and nothing half done."""

import errno
import os
import warnings
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.cli.conftest import QUICK, write_csv, write_images

BAD = {
    "missing.csv": ("learn", "missing.csv", "--out", "r"),
    "does not exist; did you mean 'table.csv'": ("learn", "tabel.csv", "--out", "r"),
    "DATA is a .npz": ("learn", "text.txt", "--out", "r"),
    "did you mean 'strength'?": ("learn", "table.csv", "--target", "strenght", "--out", "r"),
    "--target NAME": ("learn", "table.csv", "--out", "r"),
    "has one class only": ("learn", "one.csv", "--target", "kind", "--task", "classification", "--out", "r"),
    "--bad-rows skip": ("learn", "holes.csv", "--target", "kind", "--out", "r"),
    "no invariance 'rotaton'; did you mean 'rotation'": (
        "learn", "table.csv", "--target", "strength", "--invariance", "rotaton", "--out", "r",
    ),
    "--image-shape HxW": (
        "learn", "table.csv", "--target", "strength", "--invariance", "affine", "--out", "r",
    ),
    "--device nowhere": ("learn", "table.csv", "--target", "strength", "--device", "nowhere", "--out", "r"),
    "no model at": ("predict", "r", "table.csv", "-o", "p.csv"),
    "is a file": ("learn", "table.csv", "--target", "strength", "--out", "text.txt"),
    "Missing option '--out'": ("learn", "table.csv"),
    "No such command": ("lern",),
}  # fmt: skip


@pytest.mark.parametrize("says", BAD)
def test_errors_are_one_sentence(orbitwise, table, folder, says):
    (folder / "text.txt").write_text("words")
    write_csv(folder / "one.csv", "a,kind", [[1, "x"], [2, "x"], [3, "x"]])
    write_csv(folder / "holes.csv", "a,kind", [[1, "x"], ["", "y"], [3, "x"]])
    ran = orbitwise(*BAD[says])
    assert ran.status == (2 if says[0].isupper() and "DATA" not in says else 1)
    assert says in ran.error
    assert ran.error.startswith("error: ")
    assert ran.error.count("\n") == 1
    assert not (folder / "r").exists()


def test_a_disk_that_is_full_is_one_sentence(orbitwise, table, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    ran = orbitwise("learn", table, "--target", "strength", "--out", "r", *QUICK)
    assert ran.status == 1
    assert "the disk is full" in ran.error
    assert not list(Path("r").rglob("*.tmp"))


@pytest.mark.parametrize(
    ("number", "says"), [(errno.EROFS, "read-only file system"), (errno.EACCES, "not permitted")]
)
def test_a_folder_that_cannot_be_made_is_one_sentence(orbitwise, table, monkeypatch, number, says):
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refused)
    ran = orbitwise("learn", table, "--target", "strength", "--out", "r", *QUICK)
    assert ran.status == 1
    assert ran.error.startswith("error: the folder r cannot be made: ")
    assert says in ran.error
    assert ran.error.count("\n") == 1


def test_no_network_is_one_sentence(orbitwise, folder, monkeypatch):
    def unreachable(*_: object, **__: object) -> None:
        warnings.warn("A network error occurred while downloading it. Retrying...", stacklevel=2)
        raise URLError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", unreachable)
    ran = orbitwise("learn", "usps", "--out", "r")
    assert ran.status == 1
    assert "could not be reached" in ran.error
    assert "ORBITWISE_DATA" in ran.error
    assert ran.error.count("\n") == 1
    assert not (folder / "r").exists()


def test_images_that_cannot_be_read_or_differ_in_size(orbitwise, pictures):
    (pictures / "lying" / "bad.png").write_bytes(b"no image")
    learn = ("learn", pictures, "--invariance", "none", "--out", "r", *QUICK)
    ran = orbitwise(*learn)
    assert "bad.png cannot be read as an image" in ran.error
    ran = orbitwise(*learn, "--bad-rows", "skip")
    assert ran.status == 0
    assert "left out 1 image that" in ran.out
    (pictures / "lying" / "bad.png").unlink()
    write_images(pictures / "lying" / "more", 2)
    from PIL import Image

    Image.new("L", (9, 7)).save(pictures / "lying" / "odd.png")
    ran = orbitwise(*learn, "--force")
    assert "odd.png has 7x9" in ran.error
    assert "--resize 6x6" in ran.error
    assert orbitwise(*learn, "--force", "--resize", "6x6").status == 0
    predict = ("predict", "r", pictures, "-o", "p.csv")
    assert "--resize 6x6" in orbitwise(*predict).error
    assert "so give --resize 6x6" in orbitwise(*predict, "--resize", "32x32").error
    assert orbitwise(*predict, "--resize", "6x6").status == 0
