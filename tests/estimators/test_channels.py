"""Which axis of an image array holds its channels."""

import numpy as np
import pytest

from orbitwise.estimators.validation import InputForm, channel_order, image_layout

TOLD = [
    ((3, 32, 32), "first"),
    ((1, 28, 28), "first"),
    ((4, 9, 2), "first"),
    ((1, 4, 4), "first"),  # one row of pixels is no picture
    ((1, 12, 3), "first"),
    ((32, 32, 3), "last"),
    ((28, 28, 1), "last"),
    ((4, 4, 1), "last"),
    ((9, 2, 4), "last"),
]


@pytest.mark.parametrize(("shape", "order"), TOLD)
def test_an_order_that_the_shape_tells_is_taken(shape, order):
    assert channel_order(shape) == order


@pytest.mark.parametrize(
    "shape", [(3, 32, 3), (3, 4, 4), (4, 4, 4), (1, 9, 1), (2, 8, 8), (8, 8, 2), (10, 28, 28), (1, 1, 3)]
)
def test_an_order_that_it_does_not_tell_is_asked_for(shape):
    with pytest.raises(ValueError, match=r'channels="first" or channels="last"'):
        channel_order(shape)
    assert channel_order(shape, "first") == "first"
    assert channel_order(shape, "last") == "last"


def test_layouts_know_the_picture():
    assert image_layout((32, 30, 3)) == InputForm((3, 32, 30), "last")
    assert image_layout((8, 9)) == InputForm((8, 9))
    assert image_layout(None) == InputForm()
    assert image_layout(None, (32, 30, 3)).given == (32, 30, 3)
    assert image_layout(None, (2, 3, 4), "first").image_shape == (2, 3, 4)


def test_height_and_width_settle_the_order():
    assert image_layout((3, 32, 3), (32, 3)).channels == "first"
    assert image_layout((3, 32, 3), (3, 32)).channels == "last"
    assert image_layout((2, 8, 8), (8, 8)).channels == "first"
    with pytest.raises(ValueError, match=r"\(3, 3, 3\), but image_shape is \(3, 3\)"):
        image_layout((3, 3, 3), (3, 3))
    assert image_layout((3, 3, 3), (3, 3), "last").channels == "last"
    with pytest.raises(ValueError, match="but image_shape is"):
        image_layout((3, 32, 32), (32, 32), "last")
    with pytest.raises(ValueError, match="but image_shape is"):
        image_layout((32, 32, 3), (3, 32, 32))


def test_rows_go_in_and_come_out_again():
    images = np.arange(2 * 24.0).reshape(2, 3, 4, 2)
    layout = InputForm((2, 3, 4), "last")
    rows = images.reshape(2, 24)
    inward = layout.inward(rows)
    np.testing.assert_array_equal(inward.reshape(2, 2, 3, 4), np.moveaxis(images, -1, 1))
    np.testing.assert_array_equal(layout.outward(inward), rows)
    np.testing.assert_array_equal(layout.inward(rows[:, None]), inward[:, None])
    for same in (InputForm(), InputForm((2, 3, 4), "first"), InputForm((6, 4))):
        assert same.inward(rows) is rows
    with pytest.raises(ValueError, match="24 numbers, but the inputs have width 23"):
        layout.inward(rows[:, 1:])
