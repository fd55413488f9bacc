"""Reports of folders and of models with data."""

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier, save
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import Folder
from orbitwise.cli.reporting import report_of_folder
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


def test_a_folder_has_all_that_its_report_needs(orbitwise, table):
    learn = ("learn", table, "--target", "strength", "--invariance", "none", "--invariance", "permutation")
    assert orbitwise(*learn, "--out", "r", "--no-report", *QUICK).status == 0
    folder = Folder(table.parent / "r")
    assert not folder.report.exists()
    text = report_of_folder(folder, folder.report).read_text()
    assert "permutation" in text
    assert "orbitwise learn" in text
    folder.examples.unlink()
    with pytest.raises(CommandError, match="--data DATA"):
        report_of_folder(folder, folder.report)
