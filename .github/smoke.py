"""Uses an installed Orbitwise as a new user would: fit, compare, save, load, report, and the command."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import orbitwise
from orbitwise import InvariantGPClassifier, InvariantGPRegressor, compare
from orbitwise.report import write_report

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8)
model = InvariantGPClassifier(invariance="flip").fit(images[:60], labels[:60])
assert model.score(images[60:], labels[60:]) > 0.5

table = np.random.default_rng(0).normal(size=(60, 3))
targets = np.sin(table).sum(axis=1)
assert compare(table, targets, [None, "permutation"]).best.name == "permutation"
mean, deviation = InvariantGPRegressor().fit(table, targets).predict(table, return_std=True)
assert (deviation > 0).all()

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "model.orbitwise"
    orbitwise.save(model, file)
    again = orbitwise.load(file)
    assert (again.predict_proba(images[60:]) == model.predict_proba(images[60:])).all()
    page = write_report(Path(folder) / "report.html", model, images[:60], labels[:60])
    assert "</html>" in page.read_text(encoding="utf-8")

command = [str(Path(sys.executable).parent / "orbitwise"), "--version"]
told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
assert told.strip() == f"orbitwise {orbitwise.__version__}", told
assert "site-packages" in orbitwise.__file__, "this is not what was installed"
print("orbitwise", orbitwise.__version__, "works")
