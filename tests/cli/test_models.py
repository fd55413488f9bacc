"""What is done with a model: predictions, measures, exports and reports."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from orbitwise import (
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    LaplacianSVC,
    VirtualSVC,
    load,
    save,
)
from orbitwise.cli import models as exporting
from orbitwise.cli.data import Data, Source, checked_test_targets
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import Folder, file_digest
from orbitwise.cli.models import exported, measure, predict, predictions, report_of_folder
from orbitwise.export import from_json, to_json, to_torchvision
from orbitwise.orbits import JitterOrbit
from orbitwise.report.ranges import orbit_of
from tests.cli.conftest import QUICK, bars, symmetric

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_several_outputs_have_columns_of_their_own():
    x, y = symmetric(12)
    model = InvariantGPRegressor(max_iterations=2).fit(x, np.column_stack([y, 2 * y]))
    columns = predictions(model, x)
    assert list(columns) == ["mean_0", "mean_1", "standard_deviation_0", "standard_deviation_1"]
    np.testing.assert_allclose(columns["mean_1"], 2 * np.array(columns["mean_0"]), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", [VirtualSVC, InvariantSVC, LaplacianSVC])
def test_kernel_machines_predict_classes(orbitwise, folder, kind):
    x, y = symmetric(12)
    labels = np.where(y > np.median(y), "high", "low")
    model = kind().fit(x, labels)
    save(model, "model.orbitwise")
    np.savez("new.npz", x=x)
    ran = orbitwise("predict", "model.orbitwise", "new.npz", "-o", "p.csv")
    assert ran.status == 0, ran.error
    head, *rows = (row.split(",") for row in Path("p.csv").read_text().splitlines())
    known = [] if kind is VirtualSVC else ["probability_high", "probability_low"]
    assert head == ["row", "prediction", *known]
    assert [row[1] for row in rows] == model.predict(x).tolist()


def test_kernel_ridge_predicts_without_deviations():
    x, y = symmetric(12)
    columns = predictions(InvariantKernelRidge().fit(x, y), x)
    assert list(columns) == ["prediction"]
    columns = predictions(InvariantKernelRidge().fit(x, np.column_stack([y, 2 * y])), x)
    assert list(columns) == ["prediction_0", "prediction_1"]


def test_inputs_of_another_width_and_no_rows_are_errors(folder):
    x, y = symmetric(12)
    model = InvariantGPRegressor(max_iterations=2).fit(x, y)
    np.savez(folder / "wide.npz", x=np.zeros((3, 5)))
    with pytest.raises(CommandError, match="5 numbers, but the model takes 3"):
        predict(model, Source("wide.npz"), folder / "p.csv", 10)
    np.savez(folder / "none.npz", x=np.zeros((0, 3)))
    with pytest.raises(CommandError, match="no rows"):
        predict(model, Source("none.npz"), folder / "p.csv", 10)
    assert not (folder / "p.csv").exists()


def test_batches_do_not_change_predictions(folder):
    x, y = symmetric(12)
    model = InvariantGPRegressor(max_iterations=2).fit(x, y)
    np.savez(folder / "new.npz", x=x)
    for size in (1, 5, 100):
        assert predict(model, Source("new.npz"), folder / f"{size}.csv", size) == (12, [])
    tables = [np.loadtxt(folder / f"{size}.csv", delimiter=",", skiprows=1) for size in (1, 5, 100)]
    np.testing.assert_allclose(tables[0], tables[2], rtol=1e-9)
    np.testing.assert_allclose(tables[1], tables[2], rtol=1e-9)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_more_rows_are_held_than_a_batch_has(folder, monkeypatch, save):
    x, y = symmetric(60)
    model = InvariantGPRegressor(max_iterations=2).fit(x[:12], y[:12])
    save(folder / "new.npz", x=x, y=y)
    whole, deviation = model.predict(x, return_std=True, include_noise=True)
    seen: list[int] = []
    columns = predictions

    def counted(given, rows):
        # rows that are a view keep alive what they are a view of
        held = rows if rows.base is None else rows.base
        seen.append(max(len(rows), held.size // 3))
        return columns(given, rows)

    def all_of_it(*_: object) -> None:
        raise AssertionError("the arrays were read whole")

    monkeypatch.setattr("orbitwise.cli.models.predictions", counted)
    monkeypatch.setattr("orbitwise.cli.data.npz_arrays", all_of_it)
    assert predict(model, Source("new.npz"), folder / "p.csv", 7) == (60, [])
    assert max(seen) == 7
    table = np.loadtxt(folder / "p.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(table[:, 1:], np.column_stack([whole, deviation]), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(table[:, 0], np.arange(60) + 1)


def test_few_notes_are_kept_of_many_batches(folder):
    x, y = symmetric(24)
    model = InvariantGPRegressor(max_iterations=2).fit(x, y)
    x[::2, 1] = np.nan
    np.savez(folder / "holes.npz", x=x)
    count, notes = predict(model, Source("holes.npz", skips=True), folder / "p.csv", 2)
    assert count == 12
    assert len(notes) == 6
    assert "column '1' of row 1" in notes[0]
    assert notes[-1] == "rows were left out of 7 more batches"
    with pytest.raises(CommandError, match="--bad-rows skip"):
        predict(model, Source("holes.npz"), folder / "q.csv", 2)
    assert not (folder / "q.csv").exists()


def test_classes_are_measured_by_error_and_log_loss():
    x, y = symmetric(20)
    labels = np.where(y > 0, "up", "down")
    model = InvariantGPClassifier(max_iterations=3).fit(x, labels)
    found = measure(model, x, labels)
    right = model.predict_proba(x)[np.arange(20), np.searchsorted(model.classes_, labels)]
    assert found["error"] == np.mean(model.predict(x) != labels)
    assert found["log_loss"] == pytest.approx(-np.log(right).mean())


def test_numbers_are_measured_by_distance_and_density():
    x, y = symmetric(20)
    model = InvariantGPRegressor(max_iterations=3).fit(x, y)
    model.feature_names_in_ = np.array(["a", "b", "c"], dtype=object)
    found = measure(model, x, y)
    assert found["rmse"] < y.std()
    assert measure(model, x, y + 1)["log_density"] < found["log_density"]


def test_an_unknown_class_is_named():
    def test_data(y) -> Data:
        return Data(np.zeros((len(y), 1)), np.array(y), ["-"] * len(y))

    assert list(checked_test_targets(test_data([1, 2]), np.array([1, 2, 3]), "classification")) == [1, 2]
    with pytest.raises(CommandError, match="'owl'"):
        checked_test_targets(test_data(["cat", "owl"]), np.array(["cat"]), "classification")


@pytest.fixture(scope="module")
def turned() -> InvariantGPClassifier:
    x, y = bars(8)
    return InvariantGPClassifier(invariance="rotation", max_iterations=2, num_nodes=2, random_state=0).fit(
        x, y
    )


@pytest.fixture(scope="module", params=["flip", "quarter_turn", "flip+quarter_turn"])
def symmetric_images(request) -> InvariantGPClassifier:
    x, y = bars(8)
    return InvariantGPClassifier(invariance=request.param, max_iterations=1, random_state=0).fit(x, y)


@pytest.mark.parametrize("builtin", [False, True])
def test_a_script_makes_the_transform(turned, builtin):
    text, note, was_run = exported(turned, "kornia", "augmentation", builtin)
    assert was_run == (not note)
    if note:
        assert builtin
        assert "kornia" in note
        pytest.importorskip("kornia", reason="its own transform needs kornia")
    space: dict = {}
    exec(text, space)
    assert callable(space["transform"])
    assert ("RandomAffine" in repr(space["transform"])) == builtin
    assert ("orbitwise.export" in text) == (not builtin)


@pytest.mark.parametrize("library", ["torchvision", "kornia"])
def test_a_finite_invariance_is_exported_and_runs(symmetric_images, library):
    text, note, was_run = exported(symmetric_images, library)
    assert (note, was_run) == ("", True)
    space: dict = {}
    exec(text, space)
    image = torch.rand(1, 6, 6)
    points = symmetric_images.orbit_.points(image.reshape(1, -1)).points[0]
    for _ in range(8):
        moved = space["transform"](image).reshape(1, -1)
        assert float((points - moved).abs().amax(1).min()) < 1e-6


def test_what_does_not_run_is_not_handed_out(symmetric_images, monkeypatch):
    monkeypatch.setattr(exporting, "to_script", lambda *_, **__: "transform = None\n")
    with pytest.raises(TypeError, match="not callable"):
        exported(symmetric_images, "torchvision")


@pytest.mark.parametrize("library", ["torchvision", "kornia", "albumentations"])
@pytest.mark.parametrize("builtin", [False, True])
def test_a_library_that_is_not_here_is_said(turned, library, builtin, monkeypatch):
    for name in ("torchvision.transforms.v2", "kornia.augmentation", "albumentations"):
        monkeypatch.setitem(sys.modules, name, None)
    text, note, was_run = exported(turned, library, builtin=builtin)
    assert was_run == (not note)
    compile(text, "augmentation.py", "exec")
    needed = builtin or library == "albumentations"
    assert (f"could not be run here: This export needs {library}" in note) == needed


def test_the_background_of_the_model_fills():
    x, y = bars(8)
    settings = {"invariance": "rotation", "max_iterations": 1, "num_nodes": 2, "random_state": 0}
    model = InvariantGPClassifier(**settings).fit(x - 3, y)
    assert f"fill={model.form_.background!r})" in exported(model, "torchvision").text
    assert model.form_.background < -2


def test_colour_images_with_channels_last_are_exported():
    x, y = bars(8)
    colours = np.stack([x, x / 2, x / 4], -1)
    model = InvariantGPClassifier(invariance="flip", max_iterations=1, random_state=0).fit(colours, y)
    space: dict = {}
    exec(exported(model, "torchvision").text, space)
    moved = np.stack([space["transform"](colours[0]) for _ in range(16)])
    apart = [np.abs(moved - each).max(axis=(1, 2, 3)) for each in (colours[0], colours[0][:, ::-1])]
    assert np.minimum(*apart).max() < 1e-6
    assert all((each < 1e-6).any() for each in apart)


def test_an_orbit_of_images_comes_back_from_json(turned, symmetric_images):
    back = from_json(exported(turned, "json").text).learned()
    assert back["angle"] == pytest.approx(turned.orbit_.learned()["angle"])
    assert from_json(exported(symmetric_images, "json").text).size == symmetric_images.orbit_.size
    with pytest.raises(CommandError, match="--builtin needs a library"):
        exported(turned, "json", builtin=True)


def test_tables_have_plain_json_and_no_script():
    x, y = symmetric(8)
    plain = InvariantGPRegressor(max_iterations=1).fit(x, y)
    signs = InvariantGPRegressor(invariance="negation", max_iterations=1).fit(x, y)
    assert orbit_of(plain) is None
    assert json.loads(exported(plain, "json").text)["kind"] == "none"
    assert not exported(plain, "json").was_run
    assert exported(signs, "json").was_run
    about = json.loads(exported(signs, "json").text)
    moved = np.array(about["sign"]) * x[:1][:, np.array(about["index"])][0]
    np.testing.assert_array_equal(moved, [x[0], -x[0]])
    with pytest.raises(CommandError, match=r"has no invariance.*json"):
        exported(plain, "torchvision")
    with pytest.raises(CommandError, match="not of images"):
        exported(signs, "torchvision")


def test_what_was_not_run_is_not_said_to_be(orbitwise, folder):
    x, y = symmetric(8)
    for invariance, was_run in ((None, False), (JitterOrbit(3, 0.1), False), ("negation", True)):
        model = InvariantGPRegressor(invariance=invariance, max_iterations=0, num_nodes=2, random_state=0)
        save(model.fit(x, y), "model.orbitwise")
        ran = orbitwise("export", "model.orbitwise", "--to", "json", "-o", "moves.json", "--force")
        assert ran.status == 0, ran.error
        assert ("(run on one input)" in ran.out) == was_run


@pytest.mark.parametrize("library", ["json", "torchvision"])
def test_a_kernel_machine_has_nothing_to_export(library):
    x, y = symmetric(12)
    with pytest.raises(CommandError, match=r"is of class InvariantSVC.* nothing to export"):
        exported(InvariantSVC().fit(x, y > np.median(y)), library)


def test_the_orbit_of_a_finite_invariance_knows_its_images(symmetric_images, tmp_path):
    save(symmetric_images, tmp_path / "model.orbitwise")
    for model in (symmetric_images, load(tmp_path / "model.orbitwise")):
        assert model.orbit_.image_shape == (1, 6, 6)
        assert to_torchvision(model.orbit_)(torch.rand(1, 6, 6)).shape == (1, 6, 6)
        assert from_json(to_json(model.orbit_)).image_shape == (1, 6, 6)


def test_a_model_file_needs_data(orbitwise, folder):
    x, y = bars(10)
    model = InvariantGPClassifier(invariance="rotation", max_iterations=2, num_nodes=2, random_state=0).fit(
        x, y
    )
    save(model, "a.orbitwise")
    np.savez("bars.npz", x=x, y=y)
    ran = orbitwise("report", "a.orbitwise")
    assert (ran.status, "--data DATA" in ran.error) == (1, True)
    ran = orbitwise("report", "a.orbitwise", "--data", "bars.npz", "--test", "bars.npz", "-o", "page.html")
    assert ran.status == 0, ran.error
    assert "<html" in (folder / "page.html").read_text()
    assert orbitwise("report", "a.orbitwise", "--data", "bars.npz", "-o", "page.html").status == 1


def test_kernel_machines_have_no_report(orbitwise, folder):
    x, y = bars(10)
    save(VirtualSVC(image_shape=(6, 6)).fit(x, y), "a.orbitwise")
    np.savez("bars.npz", x=x, y=y)
    ran = orbitwise("report", "a.orbitwise", "--data", "bars.npz", "-o", "page.html")
    assert ran.status == 1
    assert "this model is of class VirtualSVC" in ran.error
    assert not (folder / "page.html").exists()


def test_a_folder_has_all_that_its_report_needs(orbitwise, table):
    learn = ("learn", table, "--target", "strength", "--invariance", "none", "--invariance", "permutation")
    assert orbitwise(*learn, "--out", "r", "--no-report", *QUICK).status == 0
    folder = Folder(table.parent / "r")
    assert not folder.report.exists()
    text = report_of_folder(folder, folder.report)[0].read_text()
    assert "permutation" in text
    assert "orbitwise learn" in text
    with folder.writing():
        busy = orbitwise("report", "r")
        assert (busy.status, "is writing to r" in busy.error) == (1, True)
        # elsewhere it only reads
        assert orbitwise("report", "r", "-o", "page.html").status == 0
    examples, about = folder.examples.read_bytes(), json.loads(folder.comparison.read_text())
    np.savez(folder.examples, x_train=np.zeros((2, 9)), y_train=np.zeros(2))
    with pytest.raises(CommandError, match="were written by different runs"):
        report_of_folder(folder, folder.report)
    folder.write(folder.comparison, {**about, "examples": file_digest(folder.examples)})
    with pytest.raises(CommandError, match="has no rows that this model takes"):
        report_of_folder(folder, folder.report)
    folder.examples.write_bytes(examples)
    # a candidate that went on since is not compared with what it was
    best = about["candidates"][0]["file"]
    folder.write(folder.comparison, {**about, "candidates": [{"file": best}, 1, {}]})
    assert "permutation" in report_of_folder(folder, folder.report)[0].read_text()
    folder.examples.unlink()
    with pytest.raises(CommandError, match="--data DATA"):
        report_of_folder(folder, folder.report)
