"""The report of a model: from the rows kept beside it, or from data that are given."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orbitwise.cli.arrays import npz_arrays
from orbitwise.cli.data import Data, Source, read
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import EARLIER, Folder, file_digest, is_earlier
from orbitwise.cli.targets import checked_targets
from orbitwise.estimators.validation import layout_of
from orbitwise.selection.compare import Candidate, Comparison, candidate_of
from orbitwise.storage import load


def report_of_folder(folder: Folder, file: Path) -> tuple[Path, str]:
    """The report of what `learn` left in a folder, and a note about the folder, empty where all is well."""
    if not folder.examples.is_file():
        raise CommandError(f"{folder.path} has no examples.npz; give the training data with --data DATA")
    from orbitwise.report import write_report

    model, arrays, settings, comparison, note = folder.steadily(lambda: _run(folder))
    page = write_report(
        file,
        model,
        arrays["x_train"],
        arrays["y_train"],
        X_test=arrays.get("x_test"),
        y_test=arrays.get("y_test"),
        comparison=comparison,
        command=settings["command"] if isinstance(settings.get("command"), str) else None,
        seed=_number(settings.get("seed"), 0),
    )
    return page, note


def _run(folder: Folder) -> tuple[Any, dict[str, NDArray[Any]], dict[str, Any], Comparison | None, str]:
    """The model, the examples, the settings and the candidates of one run, and a note about them."""
    settings, about = folder.one_run()
    note = EARLIER.format(folder=folder.path) if is_earlier(settings, about) else ""
    arrays = npz_arrays(folder.examples)
    comparison = _comparison(folder, about, _number(settings.get("rows"), 1))
    model = load(folder.model) if comparison is None else comparison.best_estimator
    width = model.n_features_in_
    for part in ("train", "test"):
        x, y = arrays.get(f"x_{part}"), arrays.get(f"y_{part}")
        if x is None and y is None and part == "test":
            continue
        if x is None or y is None or x.ndim != 2 or x.shape[1] != width or len(x) != len(y) or not len(x):
            raise CommandError(
                f"{folder.examples} has no rows that this model takes; give the training data with --data"
            )
    return model, arrays, settings, comparison, note


def _number(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def report_of_data(model: Any, source: Source, test: Source | None, file: Path) -> Path:
    """The report of a model on data that are given."""
    from orbitwise.report import write_report

    if not hasattr(model, "posterior_") or hasattr(model, "spelling_"):
        raise CommandError(
            f"this model is of class {type(model).__name__}; reports are of models that "
            "`orbitwise learn` makes: use `orbitwise show` or `orbitwise predict`"
        )
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


def _comparison(folder: Folder, about: dict[str, Any], count: int) -> Comparison | None:
    """The candidates as they were saved, best first; None where there was one only, or some are gone."""
    found: list[Candidate] = []
    entries = about.get("candidates")
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            return None
        file = folder.path / "candidates" / Path(str(entry.get("file"))).name
        if not file.is_file() or (not is_earlier(about) and entry.get("sha256") != file_digest(file)):
            return None
        seconds = entry.get("seconds")
        spent = float(seconds) if isinstance(seconds, int | float) else 0.0
        candidate = candidate_of(str(entry.get("name")), load(file), spent, max(count, 1))
        found.append(replace(candidate, **_judged(entry)))
    nodes = about.get("num_nodes")
    num_nodes = nodes if isinstance(nodes, int) and nodes > 0 else None
    return Comparison(tuple(found), num_nodes) if len(found) > 1 else None


def _judged(entry: dict[str, Any]) -> dict[str, Any]:
    """The evidence of a candidate on common nodes, where the comparison had any."""
    evidences, gain = entry.get("evidences_on_common_nodes"), entry.get("gain_from_half_the_nodes")
    if isinstance(evidences, list) and evidences and all(map(_is_finite, (*evidences, gain))):
        return {"evidences": tuple(map(float, evidences)), "gain": gain}
    return {}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
