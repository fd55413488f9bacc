"""What words of options mean."""

import numpy as np
import pytest

from orbitwise.cli.app import as_images, command_of, images_text, size_of
from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError


def test_sizes_are_height_and_width():
    assert size_of("28X30", "--resize") == (28, 30)
    for text in ("28", "0x3", "axb"):
        with pytest.raises(CommandError, match="as in 28x28"):
            size_of(text, "--resize")


def test_rows_become_images():
    data = Data(np.zeros((2, 24)), np.zeros(2), ["1", "2"])
    assert as_images(data, (4, 6)).shape == (4, 6)
    assert as_images(data, (2, 4)).shape == (3, 2, 4)
    with pytest.raises(CommandError, match="25 pixels, but inputs have 24"):
        as_images(data, (5, 5))


def test_arrays_have_their_channels_where_the_shape_or_the_option_says():
    def data(*shape):
        return Data(np.zeros((2, int(np.prod(shape)))), np.zeros(2), ["1", "2"], None, shape)

    found = as_images(data(6, 5, 3), None)
    assert (found.channels, found.is_image, found.layout.shape) == ("last", True, (3, 6, 5))
    assert "6x5 pixels, 3 channels last (--channels first" in images_text(found)
    assert as_images(data(3, 6, 3), (6, 3)).channels == "first"
    assert as_images(data(3, 6, 3), None, "last").channels == "last"
    with pytest.raises(ValueError, match="--channels first or --channels last"):
        as_images(data(3, 6, 3), None)
    plain = as_images(data(12, 2), None)
    assert not plain.is_image
    assert images_text(plain) == ""
    with pytest.raises(CommandError, match="the inputs are of shape 12x2"):
        as_images(data(12, 2), (6, 4))
    with pytest.raises(CommandError, match="have no channels"):
        as_images(data(12, 2), (12, 2), "last")


def test_rows_of_several_channels_have_whole_pictures_one_after_the_other():
    data = Data(np.zeros((2, 24)), np.zeros(2), ["1", "2"])
    assert as_images(data, (2, 4)).channels == "first"
    assert as_images(data, (2, 4), "last").shape == (2, 4, 3)
    files = Data(np.zeros((2, 24)), np.zeros(2), ["1", "2"], None, (3, 2, 4), True, channels="first")
    assert as_images(files, None) is files
    with pytest.raises(CommandError, match="image files know their channels"):
        as_images(files, None, "last")


def test_a_command_line_is_written_down():
    options = {"target": "my y", "invariance": ["none", "sign"], "test": None, "max_iterations": 3}
    words = "orbitwise learn a.csv --target 'my y' --invariance none --invariance sign --max-iterations 3"
    assert command_of("learn", "a.csv", options) == words
