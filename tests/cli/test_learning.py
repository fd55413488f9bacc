"""One run, from candidates that are fitted, kept and resumed to the report; the demonstration."""

import io
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, load
from orbitwise.cli.app import check_device
from orbitwise.cli.data import NUM_DEMO, Data, demo_data
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import Folder
from orbitwise.cli.learning import Learner, Plan, Run, demo_plan
from orbitwise.cli.watching import Watch
from orbitwise.storage import StorageError
from orbitwise.storage.models import packed
from tests.cli.conftest import QUICK, bars, symmetric

OPTIONS = {"max_iterations": 4, "num_nodes": 4}


def images(count: int = 12) -> Data:
    x, y = bars(count)
    return Data(x.reshape(count, -1), y, [str(i) for i in range(count)], None, (6, 6), True)


def learned(folder: Folder, data: Data, names, console=None):
    plan = Plan("classification", names, options=OPTIONS)
    folder.prepare(plan.settings(data), resume=True, force=False)
    return Learner(data, plan, folder, Watch(console or Console(quiet=True))).learn()


def test_candidates_of_a_run_that_was_cut_short_are_not_fitted_again(tmp_path, monkeypatch):
    whole = Folder(tmp_path / "whole")
    outcome = learned(whole, images(), ["none", "rotation"])
    cut = Folder(tmp_path / "cut")
    fits: list[str] = []
    fit = InvariantGPClassifier.fit

    def counted(self, X, y):
        fits.append(str(self.invariance))
        if len(fits) == 2:
            raise RuntimeError("killed")
        return fit(self, X, y)

    monkeypatch.setattr(InvariantGPClassifier, "fit", counted)
    with pytest.raises(RuntimeError):
        learned(cut, images(), ["none", "rotation"])
    again = learned(cut, images(), ["none", "rotation"])
    assert fits == ["None", "rotation", "rotation"]
    assert again.comparison.best.log_evidence == outcome.comparison.best.log_evidence
    assert cut.model.read_bytes() == whole.model.read_bytes()
    assert load(cut.model).orbit_errors_.keys() == {"angle"} or again.comparison.best.name == "none"


def test_a_candidate_that_cannot_be_saved_is_left_out(tmp_path, monkeypatch):
    def refusing(estimator, *arguments, **options):
        if estimator.invariance == "rotation":
            raise StorageError("it is odd")
        return packed(estimator, *arguments, **options)

    monkeypatch.setattr("orbitwise.cli.learning.packed", refusing)
    console, folder = Console(file=io.StringIO(), width=400), Folder(tmp_path / "a")
    outcome = learned(folder, images(), ["rotation", "none"], console)
    assert [each.name for each in outcome.comparison.candidates] == ["none"]
    assert folder.model.is_file()
    said = console.file.getvalue()  # pyright: ignore
    assert "note: rotation is left out, because its model cannot be saved (it is odd)" in said
    with pytest.raises(CommandError, match="no candidate could be saved"):
        learned(Folder(tmp_path / "b"), images(), ["rotation"])


def test_the_best_of_an_earlier_run_is_replayed_for_its_error_bars(tmp_path):
    folder = Folder(tmp_path / "a")
    learned(folder, images(), ["rotation"])
    before = folder.model.read_bytes()
    folder.model.unlink()
    learned(folder, images(), ["rotation"])
    assert folder.model.read_bytes() == before
    assert set(load(folder.model).orbit_errors_) == {"angle"}


def test_time_that_is_over_does_not_cut_a_candidate_that_was_finished(tmp_path):
    data, names = images(), ["rotation", "translation"]
    plan, folder = Plan("classification", names, options=OPTIONS), Folder(tmp_path / "a")
    folder.prepare(plan.settings(data), resume=True, force=False)
    one = Plan("classification", ["rotation"], options=OPTIONS)
    first = Learner(data, one, folder, Watch(Console(quiet=True))).learn()
    outcome = Learner(data, plan, folder, Watch(Console(quiet=True), time_limit=0.0)).learn()
    assert dict(outcome.stopped) == {"translation": "not started"}
    assert outcome.comparison.best.log_evidence == first.comparison.best.log_evidence


def test_seconds_add_up_over_the_processes_of_a_candidate(tmp_path):
    data, folder = images(), Folder(tmp_path / "a")
    plan = Plan("classification", ["rotation"], options=OPTIONS)
    folder.prepare(plan.settings(data), resume=True, force=False)
    first = Learner(data, plan, folder, Watch(Console(quiet=True), time_limit=0.0)).learn().comparison.best
    kept = folder.progress(0, "rotation") / "seconds.txt"
    assert sum(map(float, kept.read_text().split())) == pytest.approx(first.seconds, abs=0.1)
    with kept.open("a") as file:
        file.write("1000.0\n")  # of a process that was killed
    second = Learner(data, plan, folder, Watch(Console(quiet=True))).learn().comparison.best
    assert second.seconds > first.seconds + 1000
    about = folder.read(folder.candidate(0, "rotation").with_suffix(".json"))
    assert about is not None
    assert about["seconds"] == second.seconds


def test_names_of_columns_are_kept(tmp_path):
    x, y = symmetric(10)
    data = Data(x, y, ["-"] * 10, ("a", "b", "c"))
    plan, folder = Plan("regression", ["none"], options={"max_iterations": 2}), Folder(tmp_path / "a")
    Run(data, data, plan, folder, Console(quiet=True), {}).learn(with_report=False)
    assert list(load(folder.model).feature_names_in_) == ["a", "b", "c"]
    kept = np.load(folder.examples)
    np.testing.assert_array_equal(kept["x_test"], x)
    np.testing.assert_array_equal(kept["y_train"], y)


def test_the_task_decides_the_estimator_and_other_data_other_settings():
    plan = Plan("regression", ["none"], seed=3)
    estimator = plan.estimator(images(), None)
    assert isinstance(estimator, InvariantGPRegressor)
    assert estimator.random_state == 3
    assert tuple(estimator.image_shape) == (6, 6)
    assert plan.settings(images())["digest"] != plan.settings(images(14))["digest"]


def test_a_device_that_is_not_here_is_named():
    check_device("cpu")
    with pytest.raises(CommandError, match="--device nowhere is not available"):
        check_device("nowhere")


@pytest.mark.parametrize("copied", ["both", "model"])
def test_a_candidate_of_another_run_is_learned_anew_and_not_lost(tmp_path, copied):
    console = Console(file=io.StringIO(), width=400)
    own, foreign = Folder(tmp_path / "own"), Folder(tmp_path / "foreign")
    learned(own, images(), ["none"])
    learned(foreign, images(16), ["none"])
    right, wrong = own.candidate(0, "none"), foreign.candidate(0, "none")
    expected, other = own.model.read_bytes(), wrong.read_bytes()
    own.model.unlink()
    right.write_bytes(other)
    if copied == "both":
        right.with_suffix(".json").write_bytes(wrong.with_suffix(".json").read_bytes())
    learned(own, images(), ["none"], console)
    assert own.model.read_bytes() == expected
    assert right.with_suffix(".foreign").read_bytes() == other
    why = "other data or with other settings" if copied == "both" else "changed after it was learned"
    assert why in console.file.getvalue()  # pyright: ignore
    again = console.file.getvalue()  # pyright: ignore
    learned(own, images(), ["none"], console)
    assert console.file.getvalue() == again  # pyright: ignore


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"seconds": "x"}', '{"digest": 1, "seconds": 1e400}'])
def test_a_damaged_note_on_a_candidate_costs_only_a_fit(tmp_path, text):
    folder = Folder(tmp_path / "a")
    learned(folder, images(), ["none"])
    expected = folder.model.read_bytes()
    folder.candidate(0, "none").with_suffix(".json").write_text(text)
    folder.model.unlink()
    learned(folder, images(), ["none"])
    assert folder.model.read_bytes() == expected


def test_data_that_are_read_in_another_way_are_other_data():
    data, plan = images(), Plan("classification", ["none"])
    others = [
        replace(data, shape=(4, 9)),
        replace(data, shape=None, is_image=False),
        replace(data, columns=tuple(f"c{i}" for i in range(36))),
        replace(data, y=data.targets.astype(str)),
        replace(data, X=data.X.reshape(24, 18)),
    ]
    assert len({plan.settings(each)["digest"] for each in (data, *others)}) == 6


def test_limits_of_a_search_reach_the_estimator(orbitwise, pictures):
    limits = ("--max-nodes", 4, "--max-seconds", 60, "--max-iterations", 2)
    ran = orbitwise("learn", pictures, "--invariance", "rotation", "--out", "r", "--no-report", *limits)
    assert ran.status == 0, ran.error
    model = load(pictures.parent / "r" / "model.orbitwise")
    assert (model.max_nodes, model.max_seconds, model.max_iterations) == (4, 60.0, 2)
    assert model.search_[-1]["num_nodes"] <= 4
    assert "learning" not in ran.out


def table(labels=None, notes=()) -> Data:
    x, y = symmetric(12)
    return Data(x, y if labels is None else np.array(labels), ["-"] * 12, notes=notes)


PLAN = Plan("regression", ["none"], options={"max_iterations": 2})


def test_a_report_that_fails_does_not_cost_the_model(tmp_path, monkeypatch):
    def failing(*_: object, **__: object) -> None:
        raise ValueError("no picture")

    monkeypatch.setattr("orbitwise.cli.learning.write_report", failing)
    text = io.StringIO()
    folder = Folder(tmp_path / "r")
    console = Console(file=text, width=200)
    Run(table(notes=("left out one",)), table(), PLAN, folder, console, {"command": "x"}).learn()
    assert folder.model.is_file()
    assert "could not be written (no picture)" in text.getvalue()
    assert "note: left out one" in text.getvalue()
    assert "note: none did not converge within --max-iterations 2; a larger" in text.getvalue()
    assert "Warning" not in text.getvalue()
    about = json.loads(folder.comparison.read_text())
    assert about["finished"]
    assert set(about["candidates"][0]["test"]) == {"rmse", "log_density"}


def test_test_labels_are_of_the_same_kind_and_known(tmp_path):
    plan = Plan("classification", ["none"], options={"max_iterations": 2})
    console = Console(quiet=True)
    words = ["1", "2"] * 6
    data = table([1, 2] * 6)
    Run(data, table(words), plan, Folder(tmp_path / "a"), console, {}).learn(with_report=False)
    with pytest.raises(CommandError, match="the class '3'"):
        Run(data, table([1, 3] * 6), plan, Folder(tmp_path / "b"), console, {})
    assert not (tmp_path / "b").exists()
    with pytest.raises(CommandError, match="not all numbers"):
        Run(table(), table(["x"] * 12), PLAN, Folder(tmp_path / "c"), console, {})


def test_a_fit_that_converged_gets_no_note(tmp_path):
    text = io.StringIO()
    plan = Plan("regression", ["none"], options={"max_iterations": 200})
    run = Run(table(), None, plan, Folder(tmp_path), Console(file=text), {})
    run.learn(force=True, with_report=False)
    assert "did not converge" not in text.getvalue()


LEARN = ("--target", "strength", "--invariance", "none", "--invariance", "permutation", "--no-report", *QUICK)


@pytest.mark.parametrize("leads_to_a_file", [True, False])
def test_resuming_writes_through_no_link(orbitwise, table, leads_to_a_file):
    learn, path, victim = ("learn", table, *LEARN, "--out"), table.parent / "cut", table.parent / "victim"
    assert orbitwise(*learn, "whole").status == 0
    assert orbitwise(*learn, "cut", "--time-limit", 0).status == 0
    if leads_to_a_file:
        victim.write_text("of somebody else")
    names = ["model.orbitwise", "comparison.json", "examples.npz", "progress/0-none/seconds.txt"]
    for name in [*names, "candidates/0-none.orbitwise", "candidates/0-none.json"]:
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(victim)
    ran = orbitwise(*learn, "cut", "--resume")
    assert ran.status == 0, ran.error
    assert victim.exists() == leads_to_a_file
    assert not leads_to_a_file or victim.read_text() == "of somebody else"
    assert (path / "model.orbitwise").read_bytes() == Path("whole/model.orbitwise").read_bytes()


def test_a_journal_that_is_a_link_is_said_in_one_line_and_left_alone(orbitwise, table):
    learn, path, victim = ("learn", table, *LEARN, "--out", "r"), table.parent / "r", table.parent / "victim"
    assert orbitwise(*learn, "--time-limit", 0).status == 0
    journal = next((path / "progress" / "0-none").glob("*.journal"))
    journal.rename(victim)
    journal.symlink_to(victim)
    content = victim.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        ran = orbitwise(*learn, "--resume")
    assert ran.status == 0
    assert victim.read_bytes() == content
    lines = ran.error.splitlines()
    assert len(lines) == 2, "as long as they are, each is one line"
    assert lines[0].startswith(f"warning: {journal.relative_to(table.parent)} is ignored, and the fit starts")
    assert "continues without checkpoints" in lines[1]
    assert ".py" not in ran.error


def test_a_folder_of_an_earlier_version_is_shown_and_not_resumed(orbitwise, table):
    learn = ("learn", table, *LEARN, "--out", "r")
    assert orbitwise(*learn).status == 0
    settings, comparison = (Path("r") / f"{name}.json" for name in ("settings", "comparison"))
    about = json.loads(settings.read_text())
    del about["format"]
    settings.write_text(json.dumps({**about, "digest": "made in another way"}))
    about = json.loads(comparison.read_text())
    for name in ("format", "digest", "model", "examples"):
        del about[name]
    for each in about["candidates"]:
        del each["sha256"]
    comparison.write_text(json.dumps(about))
    for arguments in (("show", "r"), ("report", "r")):
        ran = orbitwise(*arguments)
        assert ran.status == 0, ran.error
        assert "r was written by an earlier version of Orbitwise" in " ".join(ran.out.split())
        assert "different runs" not in ran.out
    assert "24 of" in orbitwise("show", "r").out
    assert Path("r/report.html").read_text().count("permutation") > 1
    assert orbitwise("predict", "r", table, "--target", "strength", "-o", "a.csv").status == 0
    assert orbitwise("export", "r", "--to", "json", "-o", "a.json").status == 0
    ran = orbitwise(*learn, "--resume")
    assert ran.status == 1
    assert "r was written by an earlier version of Orbitwise, and this version cannot resume it" in ran.error
    assert "--force, or choose another --out" in ran.error
    assert orbitwise(*learn, "--force").status == 0
    assert "earlier version" not in orbitwise("show", "r").out


def test_data_that_no_fit_takes_do_not_cost_what_force_replaces(orbitwise, table):
    learn = ("learn", table, "--target", "strength", "--out", "run", "--max-iterations", 1, "--no-report")
    assert orbitwise(*learn, "--invariance", "none").status == 0
    before = Path("run/model.orbitwise").read_bytes()
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, "1e200,1,1,1"]) + "\n")
    ran = orbitwise(*learn, "--invariance", "none", "--force")
    assert ran.status == 1
    assert "The largest entry of X" in ran.error
    assert Path("run/model.orbitwise").read_bytes() == before


def test_another_spelling_of_the_same_path_resumes(orbitwise, table):
    options = ("--target", "strength", "--out", "run", "--invariance", "none", "--max-iterations", 1)
    assert orbitwise("learn", table.name, *options).status == 0
    assert orbitwise("learn", f"./{table.name}", *options, "--resume").status == 0


def test_training_and_test_images_share_no_row():
    data, test = demo_data()
    assert len(data) == NUM_DEMO
    assert len(data) + len(test) == 1797
    assert not set(data.labels) & set(test.labels)
    assert data.X.min() == 0
    assert data.X.max() == 1
    assert len(np.unique(data.targets)) == 10


def test_it_compares_four_invariances():
    assert list(demo_plan().names) == ["none", "rotation", "affine", "affine+deformation"]


def test_the_demonstration_ends_with_a_table_and_a_report(folder):
    data, test = demo_data()
    plan = demo_plan(options={"num_nodes": 4, "max_iterations": 1})
    console = Console(file=io.StringIO(), width=110)
    outcome = Run(data.take(30, 0), test.take(40, 0), plan, Folder(folder / "demo"), console, {}).learn()
    text = console.file.getvalue()  # pyright: ignore
    assert len(outcome.comparison.candidates) == 4
    assert "Evidence of the training data" in text
    assert "report:" in text
    assert (folder / "demo" / "report.html").is_file()
    assert (folder / "demo" / "picture.png").is_file()


@pytest.mark.slow
def test_the_whole_of_it_learns_ranges_with_error_bars(orbitwise, folder):
    ran = orbitwise("demo", "--out", "demo")
    assert ran.status == 0, ran.error
    best = json.loads((folder / "demo" / "comparison.json").read_text())["best"]
    assert best in ("affine", "affine+deformation")
    model = load(folder / "demo" / "model.orbitwise")
    assert model.orbit_intervals_.keys() == model.orbit_.learned().keys()


@pytest.mark.parametrize("form", ["grey", "channels first", "channels last"])
def test_bytes_in_a_file_and_in_a_folder_of_pictures_are_the_same_images(orbitwise, folder, form):
    """The files of a folder are read as numbers from 0 to 1, those of an .npz file as they are."""
    rng, y = np.random.default_rng(0), np.arange(12) % 2
    images = rng.integers(0, 256, size=(12, 6, 7) if form == "grey" else (12, 6, 7, 3), dtype=np.uint8)
    images[y == 1, :3] //= 3
    given = np.moveaxis(images, -1, 1) if form == "channels first" else images
    np.savez(folder / "images.npz", images=given, labels=np.array(["a", "b"])[y])
    for place, (image, label) in enumerate(zip(images, y, strict=True)):
        part = folder / "pictures" / "ab"[label]
        part.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(part / f"{place:03}.png")
    settings = ("--invariance", "flip", "--no-report", *QUICK)
    ran = orbitwise("learn", "images.npz", "--target", "labels", "--out", "file", *settings)
    assert ran.status == 0, ran.error
    ran = orbitwise("learn", "pictures", "--out", "folder", *settings)
    assert ran.status == 0, ran.error
    models = [load(folder / name / "model.orbitwise") for name in ("file", "folder")]
    assert models[0].log_evidence_ == pytest.approx(models[1].log_evidence_, rel=1e-6)
    assert [each.form_.brightness for each in models] == ["bytes", "unit"]
    first = images / 255 if form == "grey" else np.moveaxis(images, -1, 1) / 255
    expected = models[0].predict_proba(given)
    np.testing.assert_allclose(models[1].predict_proba(first), expected, rtol=1e-5)
    ran = orbitwise("predict", "file", "pictures", "-o", "p.csv")
    assert ran.status != 0
    assert "those of the fit were whole numbers up to 255" in ran.error
