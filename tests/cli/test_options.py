"""What words of options mean."""

import numpy as np
import pytest

from orbitwise.cli.app import command_of, size_of
from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError


def test_sizes_are_height_and_width():
    assert size_of("28X30", "--resize") == (28, 30)
    for text in ("28", "0x3", "axb"):
        with pytest.raises(CommandError, match="as in 28x28"):
            size_of(text, "--resize")


def test_rows_become_images():
    data = Data(np.zeros((2, 24)), np.zeros(2), ["1", "2"])
    assert data.as_images((4, 6)).shape == (4, 6)
    assert data.as_images((2, 4)).shape == (3, 2, 4)
    with pytest.raises(CommandError, match="25 pixels, but inputs have 24"):
        data.as_images((5, 5))


def test_arrays_have_their_channels_where_the_shape_or_the_option_says():
    def data(*shape):
        return Data(np.zeros((2, int(np.prod(shape)))), np.zeros(2), ["1", "2"], None, shape)

    found = data(6, 5, 3).as_images(None)
    assert (found.channels, found.is_image, found.form.shape) == ("last", True, (3, 6, 5))
    assert "6x5 pixels, 3 channels last (use --channels first" in found.channels_text
    assert data(3, 6, 3).as_images((6, 3)).channels == "first"
    assert data(3, 6, 3).as_images(None, "last").channels == "last"
    with pytest.raises(ValueError, match="--channels first or --channels last"):
        data(3, 6, 3).as_images(None)
    plain = data(12, 2).as_images(None)
    assert not plain.is_image
    assert plain.channels_text == ""
    with pytest.raises(CommandError, match="the inputs have shape 12x2"):
        data(12, 2).as_images((6, 4))
    with pytest.raises(CommandError, match="have no channels"):
        data(12, 2).as_images((12, 2), "last")


def test_rows_of_several_channels_have_whole_pictures_one_after_the_other():
    data = Data(np.zeros((2, 24)), np.zeros(2), ["1", "2"])
    assert data.as_images((2, 4)).channels == "first"
    assert data.as_images((2, 4), "last").shape == (2, 4, 3)
    files = Data(np.zeros((2, 24)), np.zeros(2), ["1", "2"], None, (3, 2, 4), True, channels="first")
    assert files.as_images(None) is files
    with pytest.raises(CommandError, match="image files know their channels"):
        files.as_images(None, "last")


def test_a_command_line_is_written_down():
    options = {"target": "my y", "invariance": ["none", "sign"], "test": None, "max_iterations": 3}
    words = "orbitwise learn a.csv --target 'my y' --invariance none --invariance sign --max-iterations 3"
    assert command_of("learn", "a.csv", options) == words
