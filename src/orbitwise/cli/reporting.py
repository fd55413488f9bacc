"""The report of a model: from the rows kept beside it, or from data that are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from orbitwise.cli.arrays import npz_arrays
from orbitwise.cli.data import Data, Source, read
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import Folder
from orbitwise.cli.targets import checked_targets
from orbitwise.estimators.validation import layout_of
from orbitwise.selection.compare import Candidate, Comparison, candidate_of
from orbitwise.storage import load


def report_of_folder(folder: Folder, file: Path) -> Path:
    """The report of what `learn` left in a folder."""
    if not folder.examples.is_file():
        raise CommandError(f"{folder.path} has no examples.npz; give the training data with --data DATA")
    from orbitwise.report import write_report

    arrays, settings = npz_arrays(folder.examples), folder.read(folder.settings) or {}
    comparison = _comparison(folder, int(settings.get("rows", len(arrays["x_train"]))))
    return write_report(
        file,
        load(folder.model) if comparison is None else comparison.best_estimator,
        arrays["x_train"],
        arrays["y_train"],
        X_test=arrays.get("x_test"),
        y_test=arrays.get("y_test"),
        comparison=comparison,
        command=settings.get("command"),
        seed=int(settings.get("seed", 0)),
    )


def report_of_data(model: Any, source: Source, test: Source | None, file: Path) -> Path:
    """The report of a model on data that are given."""
    from orbitwise.report import write_report

    names = getattr(model, "feature_names_in_", None)
    width, layout = model.n_features_in_, layout_of(model)
    like = Data(
        np.zeros((0, width)),
        None,
        [],
        None if names is None else tuple(str(name) for name in names),
        layout.given,
        layout.shape is not None,
        channels=layout.channels,
    )
    data = read(source, like)
    held_out = None if test is None else read(test, like)
    return write_report(
        file,
        model,
        data.X,
        targets_of(model, data),
        X_test=None if held_out is None else held_out.X,
        y_test=None if held_out is None else targets_of(model, held_out),
    )


def targets_of(model: Any, data: Data) -> Any:
    """Targets of the kind that a model predicts."""
    task = "classification" if hasattr(model, "classes_") else "regression"
    return checked_targets(data.targets, task, data.target)


def _comparison(folder: Folder, count: int) -> Comparison | None:
    """The candidates as they were saved, best first; None where there was one only, or some are gone."""
    about = folder.read(folder.comparison)
    found: list[Candidate] = []
    for entry in [] if about is None else about.get("candidates", []):
        file = folder.path / "candidates" / Path(str(entry["file"])).name
        if not file.is_file():
            return None
        found.append(candidate_of(str(entry["name"]), load(file), float(entry["seconds"]), count))
    return Comparison(tuple(found)) if len(found) > 1 else None
