import base64
import io

import numpy as np
from PIL import Image

from orbitwise.estimators.validation import InputForm
from orbitwise.report.pictures import painter_for, png_uri


def opened(uri: str) -> np.ndarray:
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_pixels_survive_the_file():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    np.testing.assert_array_equal(opened(png_uri(pixels)), pixels)


def test_mostly_background_is_ink_on_paper():
    rows = np.zeros((2, 16))
    rows[:, :4] = 1.0
    painter = painter_for(rows, (4, 4))
    picture = opened(painter.uri(rows[0]))
    assert (picture[0] == 0).all()
    assert (picture[1:] == 255).all()


def test_photographs_and_colours_stay_as_they_are():
    grey = np.linspace(0, 1, 16)[None]
    assert opened(painter_for(grey, (4, 4)).uri(grey[0]))[0, 0] == 0
    colour = np.zeros((1, 12))
    colour[0, :4] = 1.0
    assert opened(painter_for(colour, (3, 2, 2)).uri(colour[0])).tolist()[0][0] == [255, 0, 0]


def test_a_sheet_has_a_row_of_pictures_for_each_move():
    rows = np.random.default_rng(0).uniform(size=(2, 3, 12))
    painter = painter_for(rows.reshape(6, 12), (3, 4))
    sheet = opened(painter.sprite(rows))
    assert sheet.shape == (6, 12)
    np.testing.assert_array_equal(sheet[3:, 8:], opened(painter.uri(rows[1, 2])))


def test_large_images_are_shown_smaller():
    rows = np.random.default_rng(0).uniform(size=(1, 35))
    painter = painter_for(rows, (5, 7), step=2)
    assert painter.size == (3, 4)
    assert opened(painter.uri(rows[0])).shape == (3, 4)
    whole = rows.reshape(5, 7)
    expected = (whole[:2, :2].mean() - rows.min()) / (np.quantile(rows, 0.999) - rows.min())
    assert abs(opened(painter.uri(rows[0]))[0, 0] - 255 * expected) <= 1


def test_five_channels_are_shown_by_their_mean():
    rows = np.random.default_rng(0).uniform(size=(1, 20))
    assert opened(painter_for(rows, (5, 2, 2)).uri(rows[0])).shape == (2, 2)


def test_channels_that_come_last_are_painted_alike():
    images = np.random.default_rng(0).random((4, 3, 5, 6))
    first = painter_for(images.reshape(4, -1), (3, 5, 6))
    rows = np.moveaxis(images, 1, -1).reshape(4, -1)
    last = painter_for(rows, InputForm((3, 5, 6), "last"))
    np.testing.assert_array_equal(last.pixels(rows), first.pixels(images.reshape(4, -1)))
