"""The picture of a run: what is drawn where, and that it is a picture."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from orbitwise import InvariantGPClassifier
from orbitwise.cli.pictures import (
    NUM_EXAMPLES,
    NUM_SAMPLES,
    draw_evidence,
    draw_orbit,
    examples_of,
    write_picture,
)
from orbitwise.selection.compare import Candidate, Comparison
from tests.cli.conftest import bars

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


ROWS, LABELS = bars(16)
ROWS = ROWS.reshape(16, 36)


@pytest.fixture(scope="module")
def rotated() -> InvariantGPClassifier:
    settings = {"image_shape": (6, 6), "max_iterations": 2, "num_nodes": 2, "random_state": 0}
    return InvariantGPClassifier(invariance="rotation", **settings).fit(ROWS, LABELS)


@pytest.fixture(scope="module")
def plain() -> InvariantGPClassifier:
    return InvariantGPClassifier(image_shape=(6, 6), max_iterations=2, random_state=0).fit(ROWS, LABELS)


def candidate(name: str, evidence: float, error: float, estimator: object = None) -> Candidate:
    return Candidate(name, evidence, error, evidence / 16, "exact", {}, 1.0, estimator)


def three(estimator: object = None) -> Comparison:
    best = candidate("affine+deformation", 150.0, 4.0, estimator)
    return Comparison((best, candidate("rotation", 145.0, 3.0), candidate("none", 20.0, 0.0)))


def test_differences_to_no_invariance_are_drawn_with_their_errors():
    axes = Figure().add_subplot()
    draw_evidence(axes, three())
    assert [text.get_text() for text in axes.texts] == ["+130 ± 4", "+125 ± 3"]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["affine +\ndeformation", "rotation (tie)", "none"]
    ends = [bar.get_segments()[0][:, 0].tolist() for bar in axes.collections]
    assert ends == [[126.0, 134.0], [122.0, 128.0]]
    low, high = axes.get_xlim()
    assert low < 0
    assert high > 134


def test_without_a_candidate_of_none_the_least_is_the_reference():
    axes = Figure().add_subplot()
    draw_evidence(axes, Comparison(three().candidates[:2]))
    assert [text.get_text() for text in axes.texts] == ["+5 ± 5"]
    assert "'rotation'" in axes.get_xlabel()


def test_real_images_are_first_in_their_lines(rotated):
    axes = Figure().add_subplot()
    rows = ROWS[:2]
    draw_orbit(axes, rotated, rows, 0)
    assert len(axes.images) == 2 * (1 + NUM_SAMPLES)
    first = np.asarray(axes.images[0].get_array(), dtype=np.float64)
    assert np.corrcoef(first.ravel(), rows[0])[0, 1] == pytest.approx(-1, abs=0.02)  # ink on paper
    assert "rotation" in axes.texts[0].get_text().replace("\N{NO-BREAK SPACE}", " ")


def test_there_is_a_picture_of_whatever_there_is_to_show(tmp_path, rotated, plain):
    sizes = {}
    cases = {
        "both": three(rotated),
        "evidence": three(plain),
        "orbit": Comparison((candidate("rotation", 1.0, 0.0, rotated),)),
    }
    for name, comparison in cases.items():
        file = tmp_path / f"{name}.png"
        assert write_picture(file, comparison, ROWS, LABELS) == file
        with Image.open(file) as image:
            assert image.format == "PNG"
            sizes[name] = image.size
            assert np.asarray(image.convert("L")).std() > 5
    assert sizes["both"][0] > max(sizes["evidence"][0], sizes["orbit"][0])
    alone = Comparison((candidate("none", 1.0, 0.0, plain),))
    assert write_picture(tmp_path / "none.png", alone, ROWS, LABELS) is None
    assert not (tmp_path / "none.png").exists()


def test_examples_are_of_different_classes_or_spread_over_values():
    assert sorted(LABELS[examples_of(LABELS, NUM_EXAMPLES)]) == [0, 1]
    digits = np.arange(30) % 10
    assert digits[examples_of(digits, 4)].tolist() == [0, 3, 6, 9]
    values = np.random.default_rng(0).normal(size=(50, 1))
    chosen = values[examples_of(values, 4), 0]
    assert chosen[0] == values.min()
    assert chosen[-1] == values.max()
