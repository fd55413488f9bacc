"""Reports of folders and of models with data."""

import json

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier, VirtualSVC, save
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import Folder, file_digest
from orbitwise.cli.models import report_of_folder
from tests.cli.conftest import QUICK, bars

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


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
