"""What is done with a model that was learned: predictions, how good they are, its report, and its export."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.pipeline import Pipeline

from orbitwise import export
from orbitwise.cli.columns import columns_of, estimator_of
from orbitwise.cli.data import Data, Expected, Source, batches, checked_targets, read
from orbitwise.cli.errors import CommandError
from orbitwise.cli.files import npz_arrays, table_writer
from orbitwise.cli.folders import EARLIER, Folder, file_digest, is_earlier, model_file
from orbitwise.cli.watching import seconds_in
from orbitwise.estimators.validation import layout_of
from orbitwise.export.scripts import run_script, to_script
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit
from orbitwise.report import write_report
from orbitwise.report.ranges import Model as ReportedModel
from orbitwise.report.ranges import orbit_of
from orbitwise.selection.compare import Candidate, Comparison, candidate_of
from orbitwise.storage import load
from orbitwise.transforms.images import check_image_shape
from orbitwise.transforms.permutations import SignedPermutations

Format = Literal["torchvision", "kornia", "albumentations", "json"]
Columns = dict[str, list[Any]]
MOST_NOTES = 5


@runtime_checkable
class Model(Protocol):
    """Any fitted estimator."""

    n_features_in_: int


@runtime_checkable
class Predictor(Protocol):
    """A fitted estimator that predicts, as all do."""

    def predict(self, X: NDArray[np.float64], /) -> NDArray[Any]:
        """Classes or numbers."""
        ...


@runtime_checkable
class Classifier(Protocol):
    """A fitted estimator that knows probabilities of classes."""

    classes_: NDArray[Any]

    def predict_proba(self, X: NDArray[np.float64], /) -> NDArray[np.float64]:
        """One column per class."""
        ...


@runtime_checkable
class GaussianProcess(Protocol):
    """A fitted estimator with a posterior, which gives predictions with standard deviations."""

    posterior_: object

    def predict(
        self, X: NDArray[np.float64], return_std: bool, include_noise: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means and standard deviations of new targets."""
        ...


def expected_by(model: Model) -> Expected:
    """What inputs of a model must look like."""
    if isinstance(model, Pipeline):
        own, encoder = expected_by(estimator_of(model)), model[:-1]
        return own._replace(columns=columns_of(encoder), encoder=encoder)
    names = _names(model)
    return Expected(model.n_features_in_, None if names is None else tuple(names), layout_of(model))


def predict(model: Model, source: Source, file: Path, batch_size: int) -> tuple[int, list[str]]:
    """Write one row per input; returns how many, and notes on inputs that were left out."""
    count, notes = 0, []
    with table_writer(file) as write:
        for data in batches(source, expected_by(model), batch_size):
            numbers = [int(label.rpartition(" ")[2]) for label in ([] if data.is_image else data.labels)]
            names: Columns = {"file": data.labels} if data.is_image else {"row": numbers}
            write({**names, **predictions(estimator_of(model), data.X)})
            count += len(data)
            notes += data.notes
        if count == 0:
            raise CommandError(f"{source.path} has no rows that can be predicted")
    more = len(notes) - MOST_NOTES
    return count, notes[:MOST_NOTES] + ([f"rows were left out of {more} more batches"] if more > 0 else [])


def predictions(model: Model, X: NDArray[np.float64]) -> Columns:
    """The columns of the table: a class and the probability of each, or mean and standard deviation.

    Some kernel machines know neither, and have predictions only.
    """
    with _without_names():
        if isinstance(model, Classifier):
            probability = model.predict_proba(X)
            found = {"prediction": model.classes_[probability.argmax(1)].tolist()}
            return found | {
                f"probability_{name}": probability[:, i].tolist() for i, name in enumerate(model.classes_)
            }
        if not isinstance(model, GaussianProcess):
            assert isinstance(model, Predictor)
            return _columns("prediction", model.predict(X))
        mean, deviation = model.predict(X, return_std=True, include_noise=True)
    if mean.ndim > 1:
        deviation = np.broadcast_to(deviation.reshape(len(mean), -1), mean.shape)
    return _columns("mean", mean) | _columns("standard_deviation", deviation)


def measure(model: Model, X: NDArray[np.float64], y: NDArray[Any]) -> dict[str, float]:
    """How good predictions of test data are.

    For classes "error", the share of wrong ones, and "log_loss", the mean of -log p(right class). For numbers
    "rmse", the root mean square error, and "log_density", the mean log density of the targets. Kernel
    machines without probabilities or deviations have the first ones only.
    """
    with _without_names():
        if isinstance(model, Classifier):
            probabilities = model.predict_proba(X)
            right = probabilities[np.arange(len(y)), np.searchsorted(model.classes_, y)]
            wrong = model.classes_[probabilities.argmax(1)] != y
            return {"error": float(wrong.mean()), "log_loss": float(-np.log(right.clip(1e-300)).mean())}
        if not isinstance(model, GaussianProcess):
            assert isinstance(model, Predictor)
            found = model.predict(X)
            if hasattr(model, "classes_"):
                return {"error": float((found != y).mean())}
            return {"rmse": float(np.sqrt(np.mean((found - y) ** 2)))}
        mean, deviation = model.predict(X, return_std=True, include_noise=True)
    density = norm.logpdf(y, mean, deviation)
    return {"rmse": float(np.sqrt(np.mean((mean - y) ** 2))), "log_density": float(density.mean())}


@contextmanager
def _without_names() -> Iterator[None]:
    """Columns were matched by name already, so arrays without names are fine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
        yield


def _names(model: Model) -> list[str] | None:
    """The names of the columns that a model was learned from."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _columns(name: str, values: NDArray[Any]) -> Columns:
    """One column, or one per output."""
    if values.ndim == 1:
        return {name: values.tolist()}
    return {f"{name}_{i}": values[:, i].tolist() for i in range(values.shape[1])}


class Exported(NamedTuple):
    """The text of a file, a note on why it could not be run, and whether it was run on one input."""

    text: str
    note: str
    was_run: bool


def exported(model: Model, to: Format, module: str = "augmentation", builtin: bool = False) -> Exported:
    """A learned invariance for other code: JSON, or a short script that makes a library's transform.

    It is run on one input first. `module` is the name of the script's file without .py. With `builtin` the
    script uses the most similar transform of the library, and needs nothing else. Raises a CommandError for
    a model without an invariance that the library could draw from.
    """
    model = estimator_of(model)
    if not hasattr(model, "functional_"):
        raise CommandError(
            f"this model is of class {type(model).__name__}, which does not learn its invariance, so there "
            "is nothing to export; export one of `orbitwise learn --estimator gp` or `sparse`"
        )
    orbit, form = orbit_of(cast(ReportedModel, model)), layout_of(model)
    if to == "json":
        if builtin:
            raise CommandError("--builtin needs a library; leave it out for --to json")
        text, was_run = _json(model, orbit)
        return Exported(text + "\n", "", was_run)
    if orbit is None or form.image_shape is None:
        what = "has no invariance" if orbit is None else "is not of images"
        raise CommandError(f"this model {what}, so there is nothing for {to} to do; use --to json")
    sizes = check_image_shape(form.image_shape)
    # warps of the model fill with its background
    text = to_script(orbit, to, image_shape=sizes, faithful=not builtin, fill=form.background, module=module)
    missing = run_script(text, to, sizes, faithful=not builtin)
    if missing is not None:
        return Exported(text, f"it could not be run here: {missing}", False)
    return Exported(text, "", True)


def _json(model: Model, orbit: Orbit | None) -> tuple[str, bool]:
    """An invariance as JSON, and whether it was run on one input.

    That of images is what `orbitwise.export.to_json` writes; that of columns lists the moves.
    """
    shape = layout_of(model).image_shape
    if orbit is not None and shape is not None:
        # to_json moves an image by what it wrote
        return export.to_json(orbit, shape), True
    content: dict[str, object] = {
        "format": "orbitwise invariance",
        "version": 1,
        "inputs": model.n_features_in_,
        "columns": _names(model),
    }
    if orbit is None:
        return json.dumps(content | {"kind": "none"}, ensure_ascii=False), False
    if not isinstance(orbit, FiniteOrbit) or not isinstance(orbit.transform, SignedPermutations):
        content |= {"kind": type(orbit).__name__, "learned": orbit.learned()}
        return json.dumps(content, ensure_ascii=False), False
    moves = orbit.transform
    # element e moves x to sign[e] * x[index[e]]
    content |= {"kind": "signed permutations", "index": moves.index.tolist(), "sign": moves.sign.tolist()}
    text = json.dumps(content, ensure_ascii=False)
    written, row = json.loads(text), torch.arange(1.0, 1.0 + moves.index.shape[1])
    moved = torch.tensor(written["sign"]) * row[torch.tensor(written["index"])]
    if not torch.equal(moved, moves.all_elements(row[None])[0]):
        raise CommandError("the moves that were written are not those of the model; nothing was exported")
    return text, True


def report_of_folder(folder: Folder, file: Path) -> tuple[Path, str]:
    """Write the report of a run from its folder; returns the page, and a note about the folder or nothing."""
    if not folder.examples.is_file():
        _reported(estimator_of(load(model_file(folder.path))))
        raise CommandError(f"{folder.path} has no examples.npz; give the training data with --data DATA")
    run = folder.steadily(lambda: _one_run(folder))
    arrays, command = run.arrays, run.settings.get("command")
    page = write_report(
        file,
        run.model,
        arrays["x_train"],
        arrays["y_train"],
        X_test=arrays.get("x_test"),
        y_test=arrays.get("y_test"),
        comparison=run.comparison,
        command=command if isinstance(command, str) else None,
        seed=_count(run.settings.get("seed"), 0),
    )
    return page, run.note


class _Run(NamedTuple):
    """The model, the examples, the settings and the candidates of one run, and a note about them."""

    model: ReportedModel
    arrays: dict[str, NDArray[Any]]
    settings: dict[str, Any]
    comparison: Comparison | None
    note: str


def _one_run(folder: Folder) -> _Run:
    settings, about = folder.one_run()
    note = EARLIER.format(folder=folder.path) if is_earlier(settings, about) else ""
    arrays = npz_arrays(folder.examples)
    comparison = _comparison(folder, about, _count(settings.get("rows"), 1))
    model = estimator_of(load(folder.model)) if comparison is None else comparison.best_estimator
    for part in ("train", "test"):
        x, y = arrays.get(f"x_{part}"), arrays.get(f"y_{part}")
        if x is None and y is None and part == "test":
            continue
        width = model.n_features_in_
        if x is None or y is None or x.ndim != 2 or x.shape[1] != width or len(x) != len(y) or not len(x):
            raise CommandError(
                f"{folder.examples} has no rows that this model takes; give the training data with --data"
            )
    return _Run(model, arrays, settings, comparison, note)


def _count(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def report_of_data(model: Model, source: Source, test: Source | None, file: Path) -> Path:
    """Write the report of a model from its training data, and from test data if there are any."""
    expected, model = expected_by(model), _reported(estimator_of(model))
    task = "classification" if isinstance(model, Classifier) else "regression"

    def targets(data: Data) -> NDArray[Any]:
        return checked_targets(data.targets, task, data.target)

    data = read(source, expected)
    held_out = None if test is None else read(test, expected)
    return write_report(
        file,
        model,
        data.X,
        targets(data),
        X_test=None if held_out is None else held_out.X,
        y_test=None if held_out is None else targets(held_out),
    )


def _reported(model: Model) -> ReportedModel:
    """The model, or a CommandError where there are no reports of its class."""
    if not isinstance(model, ReportedModel):
        raise CommandError(
            f"this model is of class {type(model).__name__}, but there are reports only of what `orbitwise "
            "learn --estimator gp` and `sparse` make; use `orbitwise show` or `orbitwise predict`"
        )
    return model


def _comparison(folder: Folder, about: dict[str, Any], count: int) -> Comparison | None:
    """The candidates as they were saved, best first; None if there is only one, or some are missing."""
    found: list[Candidate] = []
    entries = about.get("candidates")
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            return None
        file = folder.path / "candidates" / Path(str(entry.get("file"))).name
        if not file.is_file() or (not is_earlier(about) and entry.get("sha256") != file_digest(file)):
            return None
        seconds = seconds_in(entry.get("seconds"))
        candidate = candidate_of(str(entry.get("name")), load(file), seconds, max(count, 1))
        found.append(replace(candidate, **_evidence_on_nodes(entry)))
    nodes = _count(about.get("num_nodes"), 0)
    return Comparison(tuple(found), nodes or None) if len(found) > 1 else None


def _evidence_on_nodes(entry: dict[str, Any]) -> dict[str, Any]:
    """The evidence of a candidate on common nodes, if the comparison used any."""
    evidences, gain = entry.get("evidences_on_common_nodes"), entry.get("gain_from_half_the_nodes")
    if isinstance(evidences, list) and evidences and all(map(_is_finite, (*evidences, gain))):
        return {"evidences": tuple(map(float, evidences)), "gain": gain}
    return {}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
