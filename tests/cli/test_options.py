"""What words of options mean."""

import numpy as np
import pytest

from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError
from orbitwise.cli.options import as_images, command_of, size_of


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


def test_a_command_line_is_written_down():
    options = {"target": "my y", "invariance": ["none", "sign"], "test": None, "max_iterations": 3}
    words = "orbitwise learn a.csv --target 'my y' --invariance none --invariance sign --max-iterations 3"
    assert command_of("learn", "a.csv", options) == words
