import re

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier
from orbitwise.report.examples import (
    example_name,
    explorer_section,
    extremes_section,
    orbit_section,
    thumbnails,
)
from orbitwise.report.exploration import choose_examples, explore
from orbitwise.report.pictures import painter_for
from orbitwise.report.predictions import judge
from orbitwise.report.ranges import orbit_of

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def explored(turned):
    judged = judge(turned.model, turned.x, turned.y, turned.x_test, turned.y_test)
    chosen = choose_examples(judged, 0, 2)
    exploration = explore(turned.model, orbit_of(turned.model), turned.x_test, judged, chosen)
    return judged, exploration, painter_for(exploration.rows, (8, 8))


def test_an_example_is_named_by_its_class_or_its_value(explored, symmetric):
    judged = explored[0]
    assert example_name(judged, 0) == judged.classes[judged.codes[0]]
    measured = judge(symmetric.model, symmetric.x, symmetric.y, None, None)
    assert example_name(measured, 0).replace("−", "-") == f"{symmetric.y[0]:.3g}"


def test_the_orbit_is_shown_around_real_examples(turned, explored):
    _, exploration, painter = explored
    section = orbit_section(turned.model, exploration, ["a", "<b>"], painter, 0)
    assert section.count('class="strip"') == 2
    assert section.count("<img") == 18
    assert painter.uri(exploration.rows[0]) in section
    assert "<b>" not in section


def test_a_finite_orbit_is_shown_by_its_elements(turned):
    model = InvariantGPClassifier(
        invariance="flip+quarter_turn", image_shape=(8, 8), max_iterations=2, random_state=0
    ).fit(turned.x[:20], turned.y[:20])
    judged = judge(model, turned.x[:20], turned.y[:20], None, None)
    exploration = explore(model, orbit_of(model), turned.x[:20], judged, np.array([0]))
    painter = painter_for(exploration.rows, (8, 8))
    section = orbit_section(model, exploration, ["a"], painter, 0)
    assert section.count("<img") == 8
    assert "elements of its orbit" in section
    words = explorer_section([exploration.tracks[0].move], ["a"], thumbnails(exploration, painter), judged)
    assert "by construction" in words
    middle = exploration.tracks[0].middle
    np.testing.assert_allclose(middle, np.broadcast_to(middle[:, :1], middle.shape), atol=1e-9)


def test_the_explorer_has_a_slider_for_each_move(explored):
    judged, exploration, painter = explored
    moves = [track.move for track in exploration.tracks]
    section = explorer_section(moves, ["<i>", "b"], thumbnails(exploration, painter), judged)
    assert section.count('type="range"') == 1
    assert "--low:0.2500;--high:0.7500" in section
    assert "&lt;i&gt;" in section
    assert "<noscript>" in section


def test_the_worst_and_the_most_uncertain_images_are_shown(turned, explored):
    judged, _, painter = explored
    section = extremes_section(turned.model, turned.x_test, judged, painter, 0)
    rows = [int(row) for row in re.findall(r">row (\d+)<", section)]
    assert len(rows) == 12
    assert rows[0] == judged.probabilities.max(1).argmin()
    assert rows[6] == judged.losses.argmax()
    assert painter.uri(turned.x_test[rows[0]].reshape(-1)) in section


def test_rows_of_a_table_are_shown_with_their_columns(symmetric):
    judged = judge(symmetric.model, symmetric.x, symmetric.y, symmetric.x_test, symmetric.y_test)
    section = extremes_section(symmetric.model, symmetric.x_test, judged, None, 0)
    rows = [int(row) for row in re.findall(r'scope="row" class="number">(\d+)<', section)]
    assert rows[0] == judged.deviation[:, 0].argmax()
    assert rows[6] == abs(judged.scores[:, 0]).argmax()
    assert "x<sub>1</sub>" in section
    assert section.count("±") == 12
