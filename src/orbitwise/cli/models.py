"""What is done with a model that was learned: predictions, the report, and export to other code."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from orbitwise import export
from orbitwise.cli.data import Data, Source, batches, checked_targets, read
from orbitwise.cli.errors import CommandError
from orbitwise.cli.files import npz_arrays, table_writer
from orbitwise.cli.folders import EARLIER, Folder, file_digest, is_earlier
from orbitwise.cli.learning import unnamed
from orbitwise.estimators.validation import layout_of
from orbitwise.export.scripts import run_script, to_script
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit
from orbitwise.report.ranges import orbit_of
from orbitwise.selection.compare import Candidate, Comparison, candidate_of
from orbitwise.storage import load
from orbitwise.transforms.images import check_image_shape
from orbitwise.transforms.permutations import SignedPermutations

MOST_NOTES = 5


def predict(model: Any, source: Source, file: Path, batch_size: int) -> tuple[int, list[str]]:
    """Write a row for every input; returns how many, and what there is to say of others."""
    names = getattr(model, "feature_names_in_", None)
    columns = None if names is None else [str(name) for name in names]
    count, notes = 0, []
    with table_writer(file) as write:
        for data in batches(source, columns, layout_of(model), batch_size):
            if data.X.shape[1] != model.n_features_in_:
                raise CommandError(
                    f"{source.path} has inputs of {data.X.shape[1]} numbers, but the model takes "
                    f"{model.n_features_in_}; name a column that is no input with --target or --ignore"
                )
            names = (
                {"file": data.labels} if data.is_image else {"row": [int(e.split()[1]) for e in data.labels]}
            )
            write({**names, **predictions(model, data.X)})
            count += len(data)
            notes += data.notes
        if count == 0:
            raise CommandError(f"{source.path} has no rows that can be predicted")
    more = len(notes) - MOST_NOTES
    return count, notes[:MOST_NOTES] + ([f"{more} more batches left something out"] if more > 0 else [])


def predictions(model: Any, X: NDArray[np.float64]) -> dict[str, list[Any]]:
    """The columns of the table: a class and the probability of each, or mean and standard deviation.

    A model that knows neither probabilities nor deviations has predictions alone.
    """
    with unnamed():
        if hasattr(model, "predict_proba"):
            probability = model.predict_proba(X)
            classes = model.classes_[probability.argmax(1)]
            each = {
                f"probability_{name}": probability[:, i].tolist() for i, name in enumerate(model.classes_)
            }
            return {"prediction": classes.tolist(), **each}
        if not hasattr(model, "posterior_"):
            # a kernel machine knows no distribution, and some of them no probabilities
            return _columns("prediction", model.predict(X))
        mean, deviation = model.predict(X, return_std=True, include_noise=True)
    if mean.ndim > 1:
        deviation = np.broadcast_to(deviation.reshape(len(mean), -1), mean.shape)
    return _columns("mean", mean) | _columns("standard_deviation", deviation)


def _columns(name: str, values: NDArray[Any]) -> dict[str, list[Any]]:
    """One column, or one for each of several outputs."""
    if values.ndim == 1:
        return {name: values.tolist()}
    return {f"{name}_{i}": values[:, i].tolist() for i in range(values.shape[1])}


Library = Literal["torchvision", "kornia", "albumentations", "json"]


class Exported(NamedTuple):
    """The text of a file, a note on why it could not be run, and whether it was run on one input."""

    text: str
    note: str
    was_run: bool


def exported(model: Any, library: Library, module: str = "augmentation", builtin: bool = False) -> Exported:
    """The file, after a run; with `builtin` a script of a library's own transform, which needs it alone."""
    if not hasattr(model, "functional_"):
        raise CommandError(
            f"this model is of class {type(model).__name__}, which is given its invariance and learns none: "
            "there is nothing to export; models that `orbitwise learn` makes have an invariance to export"
        )
    orbit, shape = orbit_of(model), model._image_shape
    if library == "json":
        if builtin:
            raise CommandError("--builtin goes with a library; leave it out for --to json")
        text, was_run = _json(model, orbit)
        return Exported(text + "\n", "", was_run)
    if orbit is None or shape is None:
        what = "has no invariance" if orbit is None else "is not of images"
        raise CommandError(f"this model {what}, so there is nothing for {library} to do; use --to json")
    sizes = check_image_shape(shape)
    text = to_script(
        orbit,
        library,
        image_shape=sizes,
        faithful=not builtin,
        # warps of the model fill with its background
        fill=model._background,
        module=module,
    )
    missing = run_script(text, library, sizes, faithful=not builtin)
    if missing is not None:
        return Exported(text, f"it could not be run here: {missing}", False)
    return Exported(text, "", True)


def _json(model: Any, orbit: Orbit | None) -> tuple[str, bool]:
    """The orbit of images as `orbitwise.export.to_json` writes it, else the moves of columns; and if run."""
    if orbit is not None and model._image_shape is not None:
        # it moves an image by what it wrote
        return export.to_json(orbit, model._image_shape), True
    names = getattr(model, "feature_names_in_", None)
    content: dict[str, Any] = {
        "format": "orbitwise invariance",
        "version": 1,
        "inputs": model.n_features_in_,
        "columns": None if names is None else [str(name) for name in names],
    }
    if orbit is None:
        content |= {"kind": "none"}
    elif isinstance(orbit, FiniteOrbit) and isinstance(orbit.transform, SignedPermutations):
        # x is moved to sign[e] * x[index[e]]
        content |= {"kind": "signed permutations", "index": orbit.transform.index.tolist()}
        content |= {"sign": orbit.transform.sign.tolist()}
    else:
        content |= {"kind": type(orbit).__name__, "learned": orbit.learned()}
    text = json.dumps(content, ensure_ascii=False)
    has_moves = "index" in content
    if has_moves:
        _run_moves(text, orbit)
    return text, has_moves


def _run_moves(text: str, orbit: Any) -> None:
    """Move one row by what was written, and compare with the orbit itself."""
    moves, row = json.loads(text), torch.arange(1.0, 1.0 + orbit.transform.index.shape[1])
    moved = torch.tensor(moves["sign"]) * row[torch.tensor(moves["index"])]
    if not torch.equal(moved, orbit.transform.all_elements(row[None])[0]):
        raise CommandError("the moves that were written are not those of the model; nothing was exported")


def report_of_folder(folder: Folder, file: Path) -> tuple[Path, str]:
    """The report of what `learn` left in a folder, and a note about the folder, empty where all is well."""
    if not folder.examples.is_file():
        raise CommandError(f"{folder.path} has no examples.npz; give the training data with --data DATA")
    from orbitwise.report import write_report

    model, arrays, settings, comparison, note = folder.steadily(lambda: _one_run(folder))
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


def _one_run(folder: Folder) -> tuple[Any, dict[str, NDArray[Any]], dict[str, Any], Comparison | None, str]:
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
