"""Tables on a terminal, and the picture of a run."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, save
from orbitwise.cli.showing import (
    NUM_EXAMPLES,
    NUM_SAMPLES,
    comparison_table,
    datasets_table,
    draw_evidence,
    draw_orbit,
    examples_of,
    model_table,
    write_picture,
)
from orbitwise.report.ranges import learned_ranges
from orbitwise.selection.compare import Candidate, Comparison, learned_text
from tests.cli.conftest import QUICK, bars
from tests.storage.round_trip import edit

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def printed(table) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()  # pyright: ignore


def candidate(name: str, evidence: float, error: float = 1.0, estimator: object = None) -> Candidate:
    return Candidate(name, evidence, error, evidence / 10, "exact", {}, 1.5, estimator)


def test_a_comparison_tells_ties_stops_and_measures():
    comparison = Comparison((candidate("a[b]", 10.0), candidate("c", 9.0), candidate("d", 0.0)))
    text = printed(comparison_table(comparison, {"d": "time limit"}, {"a[b]": {"error": 0.0123}}))
    assert "a[b]" in text
    assert "c (tie)" in text
    assert "d (stopped: time limit)" in text
    assert "1.23%" in text
    assert "10.0 ± 1.0" in text
    assert learned_text(comparison.best) == ""


def test_a_model_is_shown_on_one_screen(orbitwise, pictures):
    learn = ("learn", pictures, "--invariance", "rotation", "--out", "r", "--no-report", *QUICK)
    assert orbitwise(*learn).status == 0
    text = orbitwise("show", "r").out
    assert len(text.splitlines()) < 24
    for words in ("angle", "images 6x6", "lying, upright", "12 of", "orbitwise 0", "rotation"):
        assert words in text
    settings = pictures.parent / "r" / "settings.json"
    settings.write_text(settings.read_text().replace('"seed": 0', '"seed": 1'))
    mixed = orbitwise("show", "r").out
    assert "12 of" not in mixed
    assert "comparison.json were written by different runs" in " ".join(mixed.split())
    alone = pictures.parent / "alone.orbitwise"
    (pictures.parent / "r" / "model.orbitwise").rename(alone)
    assert "ImageOrbit" in printed(model_table(alone))


def test_errors_are_in_the_unit_of_what_was_learned(tmp_path):
    images = np.random.default_rng(0).random((8, 5, 5))
    quick = {"max_iterations": 0, "num_nodes": 2, "random_state": 0}
    model = InvariantGPRegressor(invariance="rotation", **quick).fit(images, np.arange(8.0))
    wide = "angle between 0° and 352°, not determined more closely"
    for error, words in ((0.02, "angle ± 1.1°"), (3.0, wide)):
        model._orbit_errors = {"angle": error}
        save(model, tmp_path / "model.orbitwise")
        assert words in printed(model_table(tmp_path / "model.orbitwise"))
        assert f"angle {learned_ranges(model)[0].error_text()}" == words


def test_lengthscales_variances_and_noise_are_in_the_units_of_the_data(tmp_path):
    x = np.random.default_rng(0).uniform(0, 10, (12, 1))
    frame = pd.DataFrame(x, columns=["age"])
    model = InvariantGPRegressor(noise=9.0, max_iterations=0, random_state=0).fit(frame, 50 * x[:, 0])
    save(model, tmp_path / "model.orbitwise")
    rows = [line.split() for line in printed(model_table(tmp_path / "model.orbitwise")).splitlines()]
    variance = 2500 * np.var(x) * model.kernel_.outputscale.item()
    lengthscale = model.kernel_.base_kernel.lengthscale.item()
    assert ["kernel", "rbf"] in rows
    for row in (
        ["hyperparameter", "value", "in", "units", "of"],
        ["variance", f"{variance:.4g}", "y²"],
        ["lengthscale", f"{lengthscale:.4g}", "age"],
        ["noise", "variance", "9", "y²"],
        ["noise", "standard", "deviation", "3", "y"],
    ):
        assert row in rows
    assert not [row for row in rows if row[:2] == ["noise", "9"]]


def test_only_some_of_many_hyperparameters_are_shown(tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 40))
    save(InvariantGPRegressor(max_iterations=0).fit(x, x[:, 0]), tmp_path / "model.orbitwise")
    text = printed(model_table(tmp_path / "model.orbitwise"))
    assert "lengthscale, x20" in text
    assert "lengthscale, x21" not in text
    assert "… and 19 more" in text
    assert "noise standard deviation" in text


def test_data_sets_are_listed_with_where_they_are():
    shown = " ".join(printed(datasets_table()).split())
    assert "Sets of scikit-learn can be used at once" in shown
    assert "the folder that ORBITWISE_DATA names" in shown


def test_nothing_that_a_file_says_reaches_the_terminal_as_a_command(tmp_path):
    model = InvariantGPRegressor(max_iterations=0, random_state=0).fit([[0.0], [1.0], [3.0]], [0.0, 1.0, 2.0])
    save(model, tmp_path / "whole")

    def edited(structure):
        structure["summary"]["mapping"]["learned_text"] = "\x1b[31mred [bold]loud[/bold]"

    file = edit(tmp_path / "whole", tmp_path / "model.orbitwise", edited)
    (tmp_path / "settings.json").write_text('{"rows": "many", "target": "\\u001b[2Jgone"}')
    text = printed(model_table(file))
    assert "?[31mred [bold]loud[/bold]" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "{}"),
        ("predict", "{}", "rows.csv", "-o", "out.csv"),
        ("report", "{}", "--data", "rows.csv", "-o", "out.html"),
        ("export", "{}", "--to", "json", "-o", "out.json"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_hostile_file_ends_in_one_line(orbitwise, folder, arguments):
    model = InvariantGPRegressor(max_iterations=0, random_state=0).fit([[0.0], [1.0], [3.0]], [0.0, 1.0, 2.0])
    save(model, folder / "whole")

    def edited(structure):
        structure["summary"]["mapping"]["log_evidence"] = "\x1b[31mmuch"
        structure["fitted"]["n_features_in_"] = 7

    edit(folder / "whole", folder / "hostile.orbitwise", edited)
    (folder / "rows.csv").write_text("x,y\n0,1\n1,2\n")
    done = orbitwise(*(each.format("hostile.orbitwise") for each in arguments))
    assert done.status != 0
    assert "damaged or hostile" in done.error
    assert len(done.error.strip().splitlines()) == 1
    assert "\x1b" not in done.error
    assert not list(folder.glob("out.*"))


ROWS, LABELS = bars(16)
ROWS = ROWS.reshape(16, 36)


@pytest.fixture(scope="module")
def rotated() -> InvariantGPClassifier:
    settings = {"image_shape": (6, 6), "max_iterations": 2, "num_nodes": 2, "random_state": 0}
    return InvariantGPClassifier(invariance="rotation", **settings).fit(ROWS, LABELS)


@pytest.fixture(scope="module")
def plain() -> InvariantGPClassifier:
    return InvariantGPClassifier(image_shape=(6, 6), max_iterations=2, random_state=0).fit(ROWS, LABELS)


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
