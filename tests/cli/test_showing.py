"""Tables on a terminal."""

import io

import numpy as np
import pytest
from rich.console import Console

from orbitwise import InvariantGPRegressor, save
from orbitwise.cli.showing import comparison_table, datasets_table, model_table
from orbitwise.report.ranges import learned_ranges
from orbitwise.selection import Candidate, Comparison
from orbitwise.selection.compare import learned_text
from tests.cli.conftest import QUICK
from tests.storage.round_trip import edit


def printed(table) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()  # pyright: ignore


def candidate(name: str, evidence: float) -> Candidate:
    return Candidate(name, evidence, 1.0, evidence / 10, "exact", {}, 1.5, None)


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


def test_data_sets_are_listed_with_where_they_are():
    assert "scikit-learn" in printed(datasets_table())


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
