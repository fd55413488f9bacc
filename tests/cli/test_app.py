"""The commands, from data in every form to predictions, exports and reports."""

import ast
import csv
import itertools
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import orbitwise as orbitwise_package
from orbitwise import __version__, load
from orbitwise.cli import main
from orbitwise.cli.app import size_of
from orbitwise.cli.errors import CommandError
from orbitwise.inference.optimise import training
from tests.cli.conftest import QUICK, bars, symmetric, write_csv


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def whole_way(orbitwise, data, *options, to: str = "json") -> None:
    """learn, predict, export, report and show, all with status 0."""
    ran = orbitwise("learn", data, "--out", "result", *options, *QUICK)
    assert ran.status == 0, ran.error
    assert Path("result/report.html").is_file()
    ending = "json" if to == "json" else "py"
    for arguments in (
        ("predict", "result", data, "-o", "predictions.csv", "--batch-size", 5),
        ("export", "result", "--to", to, "-o", f"invariance.{ending}"),
        ("report", "result"),
        ("show", "result"),
    ):
        ran = orbitwise(*arguments)
        assert ran.status == 0, ran.error
        assert ran.error == ""


def test_a_table_goes_the_whole_way(orbitwise, table):
    whole_way(orbitwise, table, "--target", "strength", "--invariance", "none", "--invariance", "permutation")
    assert json.loads(Path("result/comparison.json").read_text())["best"] == "permutation"
    assert not Path("result/picture.png").exists()  # a table has no images to show
    assert json.loads(Path("invariance.json").read_text())["columns"] == ["a", "b", "c"]
    predicted = rows_of(Path("predictions.csv"))
    assert [row["row"] for row in predicted] == [str(i + 1) for i in range(24)]
    mean = np.array([float(row["mean"]) for row in predicted])
    truth = [float(row["strength"]) for row in rows_of(table)]
    assert np.abs(mean - truth).max() < 0.5
    assert all(float(row["standard_deviation"]) > 0 for row in predicted)


def test_parquet_goes_the_whole_way(orbitwise, folder):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    x, y = symmetric(24)
    columns = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "strength": y}
    parquet.write_table(pyarrow.table(columns), folder / "table.parquet")
    whole_way(orbitwise, "table.parquet", "--target", "strength", "--invariance", "permutation")
    assert orbitwise("predict", "result", "table.parquet", "-o", "p.parquet", "--batch-size", 5).status == 0
    written = parquet.read_table(folder / "p.parquet").to_pydict()
    assert written["row"] == list(range(1, 25))
    as_text = [float(row["mean"]) for row in rows_of(Path("predictions.csv"))]
    assert written["mean"] == as_text


def test_a_folder_of_images_goes_the_whole_way(orbitwise, pictures):
    whole_way(orbitwise, pictures, "--invariance", "rotation", to="torchvision")
    predicted = rows_of(Path("predictions.csv"))
    assert all(row["file"].startswith(row["prediction"]) for row in predicted)
    assert {"probability_lying", "probability_upright"} < set(predicted[0])
    assert Path("result/picture.png").read_bytes().startswith(b"\x89PNG")
    transform = runpy.run_path("invariance.py")["transform"]
    assert "6" in repr(transform)


def test_molecules_in_arrays_go_the_whole_way(orbitwise, folder):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 4, 3))
    y = np.exp(-np.square(x[:, 1:] - x[:, :1]).sum(-1) / 9).sum(1)
    np.savez(folder / "molecules.npz", x=x, y=y, z=np.array([6, 1, 1, 1]))
    whole_way(orbitwise, "molecules.npz", "--target", "y", "--invariance", "permutation")
    moves = json.loads(Path("invariance.json").read_text())
    assert len(moves["index"]) == 6  # three like atoms
    assert moves["index"][-1][:3] == [0, 1, 2]


def test_images_in_arrays_take_test_data_and_a_part_of_the_rows(orbitwise, folder):
    x, y = bars(16)
    np.savez(folder / "bars.npz", x_train=x[:10], y_train=y[:10], x_test=x[10:], y_test=y[10:])
    ran = orbitwise(
        "learn", "bars.npz", "--rows", 8, "--invariance", "none", "--test", "bars.npz", "--out", "r"
    )
    assert ran.status == 0, ran.error
    assert "classification of 'y'" in ran.out
    about = json.loads(Path("r/comparison.json").read_text())["candidates"][0]
    assert about["test"]["error"] == 0
    assert json.loads(Path("r/settings.json").read_text())["rows"] == 8


def test_a_table_that_names_images_is_read(orbitwise, pictures, folder):
    files = sorted(pictures.rglob("*.png"))
    rows = [(file.relative_to(folder), file.parent.name) for file in files]
    names = write_csv(folder / "names.csv", "picture,kind", rows)
    ran = orbitwise("learn", names, "--target", "kind", "--invariance", "none", "--out", "r", *QUICK)
    assert ran.status == 0, ran.error
    assert orbitwise("predict", "r", names, "-o", "p.csv").status == 0
    assert all(row["prediction"] in row["file"] for row in rows_of(Path("p.csv")))


def test_a_known_set_is_used_by_name(orbitwise, folder):
    ran = orbitwise("learn", "iris", "--rows", 30, "--out", "r", *QUICK)
    assert ran.status == 0, ran.error
    assert "digits" in orbitwise("datasets").out


def test_columns_are_matched_by_name_whatever_their_order(orbitwise, table):
    assert orbitwise("learn", table, "--target", "strength", "--out", "r", *QUICK).status == 0
    assert list(load("r/model.orbitwise").feature_names_in_) == ["a", "b", "c"]
    shuffled = [{"c": row["c"], "more": "9", "a": row["a"], "b": row["b"]} for row in rows_of(table)]
    write_csv(Path("new.csv"), "c,more,a,b", [list(row.values()) for row in shuffled])
    for data, out in ((table, "one.csv"), ("new.csv", "two.csv")):
        assert orbitwise("predict", "r", data, "-o", out).status == 0
    assert Path("one.csv").read_text() == Path("two.csv").read_text()
    write_csv(Path("less.csv"), "a,b,d", [[1, 2, 3]])
    ran = orbitwise("predict", "r", "less.csv", "-o", "three.csv")
    assert ran.status == 1
    assert "no column 'c'" in ran.error
    assert not Path("three.csv").exists()


def test_what_is_there_is_replaced_only_by_force(orbitwise, table):
    learn = ("learn", table, "--target", "strength", "--out", "r", *QUICK)
    assert orbitwise(*learn).status == 0
    before = Path("r/model.orbitwise").read_bytes()
    ran = orbitwise(*learn, "--seed", 1)
    assert (ran.status, "--force" in ran.error, "--resume" in ran.error) == (1, True, True)
    assert Path("r/model.orbitwise").read_bytes() == before
    Path("r/mine.txt").write_text("mine")
    assert orbitwise(*learn, "--force").status == 0
    assert Path("r/mine.txt").read_text() == "mine"
    Path("p.csv").write_text("mine")
    assert orbitwise("predict", "r", table, "-o", "p.csv").status == 1
    assert Path("p.csv").read_text() == "mine"


def test_a_traceback_is_shown_only_when_asked_for(orbitwise, folder):
    assert "Traceback" not in orbitwise("learn", "missing.csv", "--out", "r").error
    assert "Traceback" in orbitwise("learn", "missing.csv", "--out", "r", "--debug").error


def test_every_help_has_an_example(orbitwise):
    for name in ("demo", "learn", "predict", "report", "show", "export", "datasets"):
        ran = orbitwise(name, "--help")
        assert ran.status == 0
        assert f"Example: orbitwise {name}" in ran.out


def test_time_that_is_over_ends_with_the_best_so_far_and_resume_goes_on(orbitwise, table):
    learn = ("learn", table, "--target", "strength", "--invariance", "none", "--invariance", "permutation")
    ran = orbitwise(*learn, "--out", "short", "--time-limit", 0)
    assert ran.status == 0, ran.error
    assert "time limit" in ran.out
    about = json.loads(Path("short/comparison.json").read_text())
    assert not about["finished"]
    assert orbitwise(*learn, "--out", "short", "--resume").status == 0
    assert orbitwise(*learn, "--out", "whole").status == 0
    assert Path("short/model.orbitwise").read_bytes() == Path("whole/model.orbitwise").read_bytes()
    assert not Path("short/progress").exists()
    finished = Path("whole/model.orbitwise").stat().st_mtime_ns
    assert orbitwise(*learn, "--out", "whole", "--resume").status == 0
    assert Path("whole/model.orbitwise").stat().st_mtime_ns == finished
    ran = orbitwise(*learn, "--out", "whole", "--resume", "--seed", 1)
    assert ran.status == 1
    assert "seed was 0 and is 1" in ran.error


def test_control_c_keeps_the_best_so_far(orbitwise, folder, monkeypatch):
    x, y = symmetric(150)
    write_csv(folder / "many.csv", "a,b,c,y", np.column_stack([x, y]))
    evaluate, count = training.evaluate, itertools.count(1)

    def interrupted(*arguments):
        if next(count) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*arguments)

    monkeypatch.setattr(training, "evaluate", interrupted)
    command = ["learn", "many.csv", "--out", "r", "--inference", "collapsed", "--max-iterations", "100000"]
    ran = orbitwise(*command, "--num-inducing", 40)
    assert ran.status == 0
    assert "interrupted" in ran.out
    assert Path("r/model.orbitwise").is_file()


@pytest.mark.requires_data("uci_reg_concrete", "rmd17_ethanol", "mnist", "usps")
@pytest.mark.parametrize("name", ["concrete", "ethanol", "mnist", "usps"])
def test_real_data_go_the_whole_way(orbitwise, data, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    if name == "concrete":
        arrays = np.load(data / "uci_reg_concrete.npz")
        rows = np.column_stack([arrays["x"], arrays["y"]])[:60]
        write_csv(tmp_path / "concrete.csv", "a,b,c,d,e,f,g,h,strength", rows)
        whole_way(orbitwise, "concrete.csv", "--target", "strength")
    elif name == "ethanol":
        hydrogens = np.flatnonzero(np.load(data / "rmd17_ethanol.npz")["z"] == 1)[:3]
        moves = "permutation:" + ",".join(map(str, hydrogens))
        whole_way(orbitwise, data / "rmd17_ethanol.npz", "--target", "y", "--invariance", moves, "--rows", 30)
    elif name == "mnist":
        options = ("--invariance", "rotation", "--rows", 40)
        arrays = np.load(data / "mnist.npz")
        np.savez(tmp_path / "some.npz", x=arrays["x_train"][:60], y=arrays["y_train"][:60])
        whole_way(orbitwise, "some.npz", *options, to="kornia")
    else:
        from PIL import Image

        arrays = np.load(data / "usps.npz")
        for place in range(40):
            part = tmp_path / "usps" / str(arrays["y_train"][place])
            part.mkdir(parents=True, exist_ok=True)
            pixels = (127.5 * (arrays["x_train"][place] + 1)).astype(np.uint8)
            Image.fromarray(pixels).save(part / f"{place}.png")
        whole_way(orbitwise, "usps", "--invariance", "affine", to="albumentations")


def test_main_takes_its_arguments_from_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["orbitwise", "datasets"])
    assert main() == 0
    assert "digits" in capsys.readouterr().out


def test_arrays_of_images_may_have_their_channels_last(orbitwise, folder):
    grey, y = bars(14)
    first = np.stack([grey, grey**2, 0.5 * grey], 1)
    means = []
    for order, x in (("first", first), ("last", np.moveaxis(first, 1, -1))):
        np.savez(folder / f"{order}.npz", x=x, y=y)
        ran = orbitwise("learn", f"{order}.npz", "--invariance", "rotation", "--out", order, *QUICK)
        assert ran.status == 0, ran.error
        assert f"images of 6x6 pixels, 3 channels {order}" in ran.out
        assert Path(order, "picture.png").is_file()
        assert f"(images 3x6x6, channels {order})" in orbitwise("show", order).out
        assert orbitwise("predict", order, f"{order}.npz", "-o", f"{order}.csv").status == 0
        assert orbitwise("report", order, "--data", f"{order}.npz", "-o", f"{order}.html").status == 0
        means.append([float(row["probability_0"]) for row in rows_of(Path(f"{order}.csv"))])
    np.testing.assert_allclose(means[0], means[1], rtol=1e-9)
    ranges = [load(f"{order}/model.orbitwise").orbit_.learned()["angle"] for order in ("first", "last")]
    assert ranges[0] == pytest.approx(ranges[1], rel=1e-9)
    pictures = [Path(order, "picture.png").read_bytes() for order in ("first", "last")]
    assert pictures[0] == pictures[1]
    ran = orbitwise("predict", "last", "first.npz", "-o", "p.csv")
    assert ran.status == 1
    assert "takes inputs of shape (6, 6, 3), channels last" in ran.error
    ran = orbitwise("learn", "last.npz", "--out", "last", "--channels", "first", "--resume", *QUICK)
    assert ran.status == 1


def test_an_order_of_channels_that_cannot_be_told_is_asked_for(orbitwise, folder):
    np.savez(folder / "a.npz", x=np.random.default_rng(0).random((8, 4, 6, 4)), y=np.arange(8) % 2)
    ran = orbitwise("learn", "a.npz", "--out", "r", *QUICK)
    assert ran.status == 1
    assert "say which with --channels first or --channels last" in ran.error
    ran = orbitwise("learn", "a.npz", "--out", "r", "--channels", "last", "--invariance", "flip", *QUICK)
    assert ran.status == 0, ran.error
    assert load("r/model.orbitwise").channels_ == "last"
    assert "--channels last" in json.loads(Path("r/settings.json").read_text())["command"]


def test_clouds_of_points_are_not_turned_as_images(orbitwise, folder):
    np.savez(folder / "clouds.npz", x=np.random.default_rng(0).random((8, 12, 2)), y=np.arange(8) % 2)
    ran = orbitwise("learn", "clouds.npz", "--out", "r", "--no-report", *QUICK)
    assert ran.status == 0, ran.error
    assert "not taken for images" in ran.out
    assert load("r/model.orbitwise").form_.image_shape is None
    ran = orbitwise("learn", "clouds.npz", "--out", "s", "--invariance", "rotation", *QUICK)
    assert ran.status == 1
    assert "PointCloudOrbit(num_points=12, num_dimensions=2" in ran.error
    said = ("--image-shape", "12x2", "--invariance", "flip", "--no-report")
    assert orbitwise("learn", "clouds.npz", "--out", "s", *said, *QUICK).status == 0
    assert load("s/model.orbitwise").form_.image_shape == (12, 2)


def test_a_finite_invariance_that_wins_is_exported(orbitwise, folder):
    x, y = bars(12)
    np.savez(folder / "bars.npz", x=x, y=y)
    ran = orbitwise("learn", "bars.npz", "--invariance", "none", "--invariance", "flip", "--out", "r", *QUICK)
    assert ran.status == 0, ran.error
    assert json.loads(Path("r/comparison.json").read_text())["best"] == "flip"
    assert load("r/model.orbitwise").orbit_.size == 2
    for library in ("torchvision", "kornia", "json"):
        file = f"moves.{'json' if library == 'json' else 'py'}"
        ran = orbitwise("export", "r", "--to", library, "-o", file, "--force")
        assert ran.status == 0, ran.error
        assert "(run on one input)" in ran.out
        if library != "json":
            transform = runpy.run_path(file)["transform"]
            assert transform(np.ones((6, 6))).shape == (6, 6)


def test_sizes_are_height_and_width():
    assert size_of("28X30", "--resize") == (28, 30)
    for text in ("28", "0x3", "axb"):
        with pytest.raises(CommandError, match="as in 28x28"):
            size_of(text, "--resize")


def test_the_command_line_is_written_down(orbitwise, folder):
    x, y = symmetric(12)
    write_csv(folder / "a.csv", "a,b,c,my y", np.column_stack([x, y]))
    said = ("--target", "my y", "--invariance", "none", "--invariance", "sign", "--max-iterations", 1)
    ran = orbitwise("learn", "a.csv", *said, "--no-report", "--force", "--out", "r")
    assert ran.status == 0, ran.error
    words = "orbitwise learn a.csv --out r --target 'my y' --invariance none --invariance sign "
    assert json.loads(Path("r/settings.json").read_text())["command"] == words + "--max-iterations 1"


def test_the_version_is_printed(orbitwise):
    assert orbitwise("--version") == (0, f"orbitwise {__version__}\n", "")


def test_flags_have_no_type_in_the_help(orbitwise):
    for name in ([], ["learn"], ["export"]):
        assert "bool" not in orbitwise(*name, "--help").out


def test_control_c_outside_of_a_fit_ends_the_command(orbitwise, table, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("orbitwise.cli.data.read", interrupted)
    assert orbitwise("learn", table, "--out", "r") == (130, "", "interrupted\n")


HELP = """
import sys
from orbitwise.cli import main

assert main(["learn", "--help"]) == 0
print(sorted({"torch", "gpytorch", "sklearn", "scipy", "matplotlib", "numpy"} & set(sys.modules)))
"""


def test_the_help_imports_nothing_that_computes():
    ran = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_every_public_name_is_imported_when_it_is_used():
    text = (
        "import orbitwise, sys; print('torch' in sys.modules); from orbitwise import *; print(dir(orbitwise))"
    )
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    before, names = ran.stdout.splitlines()
    assert before == "False"
    assert set(orbitwise_package.__all__) < set(ast.literal_eval(names))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        orbitwise_package.nothing  # noqa: B018


def test_the_package_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["orbitwise", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("orbitwise.cli", run_name="__main__")
    assert ended.value.code == 0
    assert "learn" in capsys.readouterr().out
