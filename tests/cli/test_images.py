"""Image files of all kinds as arrays of one shape."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orbitwise.cli.errors import CommandError
from orbitwise.cli.files import class_folders, images_in, load_images

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    grey = Image.fromarray(GREY)
    images = {
        "grey": grey,
        "deep": Image.fromarray(GREY.astype(np.uint16) * 257),
        "colour": Image.merge("RGB", [grey, grey, grey]),
        "clear": Image.merge("RGBA", [grey, grey, grey, grey]),
    }
    for name, image in images.items():
        image.save(tmp_path / f"{name}.png")
    return {name: tmp_path / f"{name}.png" for name in images}


@pytest.mark.parametrize("name", ["grey", "deep", "colour", "clear"])
def test_values_are_between_0_and_1(files, name):
    pixels = load_images([files[name]]).pixels[0]
    shown = pixels if pixels.ndim == 2 else pixels.mean(0)
    np.testing.assert_allclose(shown, GREY / 255, atol=1e-12)


def test_one_image_in_colour_makes_all_coloured(files):
    assert load_images([files["grey"], files["colour"]]).pixels.shape == (2, 3, 3, 4)
    assert load_images([files["grey"], files["colour"]], (3, 4)).pixels.shape == (2, 3, 4)
    assert load_images([files["grey"]], (3, 3, 4)).pixels.shape == (1, 3, 3, 4)
    assert load_images([files["grey"]], (1, 3, 4)).pixels.shape == (1, 1, 3, 4)


def test_unreadable_files_are_named(files, tmp_path):
    (tmp_path / "torn.png").write_bytes(files["grey"].read_bytes()[:40])
    found = load_images([tmp_path / "torn.png", files["grey"], tmp_path / "gone.png"])
    assert found.kept == [1]
    assert set(found.failures) == {tmp_path / "torn.png", tmp_path / "gone.png"}


def test_sizes_must_agree_or_are_changed(files, tmp_path):
    Image.new("L", (9, 9)).save(tmp_path / "big.png")
    both = [files["grey"], files["grey"], tmp_path / "big.png"]
    with pytest.raises(CommandError, match=r"big.png has 9x9 .* other images have 3x4; .*--resize 3x4"):
        load_images(both)
    with pytest.raises(CommandError, match="the model takes 9x9"):
        load_images([files["grey"]], (9, 9))
    assert load_images(both, None, (3, 4)).pixels.shape == (3, 3, 4)


def test_folders_are_classes(files, tmp_path):
    with pytest.raises(CommandError, match="name of the class"):
        class_folders(tmp_path)
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).mkdir()
        Image.fromarray(GREY).save(tmp_path / name / "1.PNG")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    found, labels = class_folders(tmp_path)
    assert labels == ["a", "b"]
    assert len(found) == 2
    assert files["grey"] in images_in(tmp_path)
