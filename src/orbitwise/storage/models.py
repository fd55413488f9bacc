"""Save a fitted estimator to one file, load it, or describe what a file holds.

Each estimator class declares its fitted attributes (see `Stored.fitted`).

A model that was read is used only if its parts fit together (`check_agreement`). Types, shapes and bounds are
checked for each object as it is built, and a class checks its own parts by its method `check_parts`. The last
check predicts two rows: their points must be few enough to be compared with those of the posterior, and the
predictions must be finite and have the right shape.
"""

from __future__ import annotations

import inspect
import math
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import Any, Protocol, final, runtime_checkable

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor

from orbitwise.declarations import COUNT, FLAG, REPORTED, TEXT, Field, is_plain_numbers, require
from orbitwise.functionals.averages import OrbitAverage, OrbitSum, features_of, orbit_in
from orbitwise.functionals.features import Features, FixedFeatures
from orbitwise.functionals.functional import Combination, Composition, Functional
from orbitwise.functionals.points import FeatureMap
from orbitwise.inference.disk import write_atomically
from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.fit_result import FitResult
from orbitwise.inference.model import Posterior
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.losses import Loss
from orbitwise.orbits.certainty import describe_certainty
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import DrawnOrbit, Orbit
from orbitwise.process.process import as_blocks
from orbitwise.storage.container import (
    FORMAT_VERSION,
    StorageError,
    brief,
    damaged,
    pack,
    printable,
    read,
    unpack,
    upgraded,
)
from orbitwise.storage.objects import Reader, Writer, check_same, estimator_in, pipeline_of, steps_of
from orbitwise.storage.recipes import Checked, declaration_of, own_classes
from orbitwise.transforms.images import check_image_shape

MOST_POINTS = 2**20
MOST_PAIRS = 2**26
"""The most pairs of points of two rows, which are in memory at once: half a gigabyte of numbers."""
PAIRS_PER_NUMBER = 2**12
"""The most pairs that one prediction may compare for each number in the file, tile by tile."""
FILE_PREFIX = re.compile(r"^The file is [^:]*\b(damaged|hostile)\b[^:]*: ")


def save(model: object, path: str | os.PathLike[str], error_seconds: float = 0.0) -> None:
    """Write a fitted estimator to one file, in full or not at all.

    The file is complete without the training data, and holds no code. A `callback`, which is code, and
    settings of this machine (`checkpoint`, `n_jobs`) are left out. Exact posteriors and kernel machines
    include the inputs of their training rows, and models with `features` a few of them. The model is read
    back and compared before the file is written.

    Parameters
    ----------
    model : estimator or Pipeline
        A fitted estimator of this package, or a scikit-learn pipeline that ends with one. Transformers may be
        `ColumnTransformer`, `Pipeline`, `OneHotEncoder`, `OrdinalEncoder`, `SimpleImputer`, `StandardScaler`,
        `MinMaxScaler` and `orbitwise.DecimalYears`.
    path : str or path-like
        The file; `.orbitwise` is the usual ending. If it is a symbolic link, the file that it points to is
        replaced.
    error_seconds : float, default=0.0
        Error bars of learned ranges are stored if they have been computed. If not, they are computed now
        provided that this takes no longer than `error_seconds`; otherwise a note in the file says that they
        are missing.

    Raises
    ------
    StorageError
        If predictions need code that a file cannot hold: a `FeatureMap`, or an orbit or kernel class of your
        own. `features` are code, too, but `load` is given them again.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import orbitwise
    >>> model = orbitwise.InvariantGPRegressor().fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.5])
    >>> path = Path(tempfile.mkdtemp()) / "model.orbitwise"
    >>> orbitwise.save(model, path)
    >>> again = orbitwise.load(path)
    >>> bool((again.predict([[1.5]]) == model.predict([[1.5]])).all())
    True
    """
    write_atomically(os.path.realpath(path), packed(model, error_seconds))


def packed(model: object, error_seconds: float = 0.0) -> bytes:
    """The bytes of the file of a fitted estimator."""
    structure, writer = take_apart(model, error_seconds)
    data = pack({**structure, "versions": _versions()}, writer.arrays)
    try:
        held = features_in(estimator_in(model))
        copy = put_together(*unpack(data), features=None if held is None else held.source)
        check_same(model, copy)
    except StorageError as error:
        # the message is about a file, but here the model is at fault
        reason = FILE_PREFIX.sub("", str(error))
        raise StorageError(f"This model cannot be saved: {reason}") from error
    return data


def load(
    path: str | os.PathLike[str],
    device: str | None = None,
    max_bytes: int | None = None,
    features: Features | None = None,
) -> Any:
    """Read a saved estimator; its predictions are equal bit for bit.

    Nothing in a file is ever executed. `fit` with `warm_start=True` resumes from a loaded model.

    Parameters
    ----------
    path : str or path-like
        The file.
    device : str, default=None
        The device on which the model computes. None and "auto" take the device of the fit if it is available
        here, else the CPU.
    max_bytes : int, default=None
        The most memory in bytes that the file may ask for, which is about twice its size. None takes half of
        this machine's memory, at most 16 GiB.
    features : torch.nn.Module, callable or transformer, default=None
        What the model was fitted with as `features`, which is code and not in the file. A module takes the
        weights that the file holds; functions and transformers are given as they were at the fit. They are
        checked by the features of a few rows, which the file holds as well.

    Returns
    -------
    estimator
        The fitted model. `callback`, `checkpoint` and `n_jobs` have their defaults, because they belong to
        the machine on which a model is used.

    Raises
    ------
    StorageError
        If the file is damaged, of a newer format, too large, or not a saved model, or if `features` are
        missing or not those of the fit.

    Examples
    --------
    See `orbitwise.save`.
    """
    structure, arrays = _unpacked(path, max_bytes)
    try:
        return put_together(structure, arrays, device, features)
    except StorageError as error:
        raise StorageError(f"{os.fspath(path)}: {error}") from error
    except Exception as error:
        raise StorageError(f"{os.fspath(path)}: The file is damaged or hostile ({brief(error)}).") from error


def describe(path: str | os.PathLike[str], max_bytes: int | None = None) -> dict[str, object]:
    """Describe a file without building the model: estimator, evidence, learned ranges, versions, notes.

    The file is checked as by `load`, and all text is safe to print in a terminal.

    Parameters
    ----------
    path : str or path-like
        The file.
    max_bytes : int, default=None
        As in `load`.

    Returns
    -------
    dict
        The description that was stored with the model.
    """
    structure, arrays = _unpacked(path, max_bytes)
    try:
        about = {name: _printable(each) for name, each in summary_in(structure).items()}
    except StorageError as error:
        raise StorageError(f"{os.fspath(path)}: {error}") from error
    num_bytes = sum(array.nbytes for array in arrays.values())
    return {**about, "format_version": FORMAT_VERSION, "num_bytes": num_bytes}


def _unpacked(
    path: str | os.PathLike[str], max_bytes: int | None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    data = read(path, max_bytes)
    try:
        return unpack(data)
    except StorageError as error:
        raise StorageError(f"{os.fspath(path)}: {error}") from error


def _versions() -> dict[str, str]:
    # imported here because the package is not complete while this module is imported
    from orbitwise import __version__

    return {
        "orbitwise": __version__,
        "torch": str(torch.__version__),
        "gpytorch": gpytorch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _printable(value: object) -> object:
    """The same value with text that is safe to print in a terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(str(key)): _printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_printable(each) for each in value)
    return value


@final
class NoObjective:
    """Replaces the objective of a loaded fit, because the objective needs the training data."""

    def __call__(self) -> Tensor:
        raise ValueError(
            "The error bars of this orbit need the training data, and were not computed before the model was "
            "saved: read orbit_errors_ of the fitted model, then save it again."
        )


SHAPE = Field((tuple, list, NoneType), Field((int,)), least=1)
TEXT_OR_NONE = Field((str, NoneType))
NEVER_STORED = {"fit_result_"}
SETTING_TYPES = (
    *(NoneType, bool, int, float, str, tuple, list, dict, np.ndarray),
    *(Kernel, Likelihood, Orbit, Functional, Loss),
)
SETTING_FIELDS = {
    "image_shape": SHAPE,
    "random_state": Field((int, NoneType), least=0, most=2**32 - 1),
    "verbose": Field((bool, int)),
    "warm_start": FLAG,
}
"""What some settings must be; `fit` checks the others when it uses them."""
LOCAL_SETTINGS = ("callback", "checkpoint", "features", "n_jobs")
"""Settings of the machine and the program in which a model is used; they are not stored."""


def _local_settings(kind: type) -> dict[str, object]:
    """The defaults of the settings that no file may choose, such as the folder to which `fit` writes."""
    known = inspect.signature(kind).parameters
    return {each: known[each].default for each in LOCAL_SETTINGS if each in known}


def known_estimators() -> dict[str, type[BaseEstimator]]:
    """The estimators of Orbitwise that a file may hold, by name."""
    return {name: kind for name, kind in sorted(own_classes().items()) if issubclass(kind, BaseEstimator)}


def take_apart(model: Any, error_seconds: float = 0.0) -> tuple[dict[str, Any], Writer]:
    """The structure of a fitted estimator or pipeline, and the writer with its objects and arrays."""
    writer = Writer()
    steps = steps_of(model, writer)
    model = estimator_in(model)
    name, known = type(model).__name__, known_estimators()
    if known.get(name) is not type(model):
        raise StorageError(
            f"A {name} cannot be stored; {', '.join(known)} can, and pipelines that end with one of them."
        )
    declared = declaration_of(type(model))
    if missing := [each for each in declared.fitted if not hasattr(model, each)]:
        raise StorageError(
            f"This {name} is not fitted, because it has no {missing[0]}: call fit before save."
        )
    parameters = model.get_params(deep=False)
    fields = {**declared.fitted, **declared.sometimes}
    notes = _find_errors(model, error_seconds)
    if parameters.get("callback") is not None:
        notes.append("callback was left out: it is code")
    if isinstance(parameters.get("random_state"), np.random.RandomState):
        parameters["random_state"] = None
        notes.append("random_state was left out: only whole numbers and None are stored")
    parameters |= _local_settings(type(model))
    if hasattr(model, "machine_") or hasattr(model, "svc_"):
        notes += _leave_out_code(parameters)
    others = set(vars(model)) - set(parameters) - set(fields) - NEVER_STORED
    notes += [f"{each} was left out: it is not an attribute that fit sets" for each in sorted(others)]
    fitted = {each: getattr(model, each) for each in fields if hasattr(model, each)}
    for timed in fitted.keys() & {"search_", "climb_"}:
        # equal fits give equal files, however long they took
        fitted[timed] = [{**stage, "seconds": math.nan} for stage in fitted[timed]]
    structure = {
        "estimator": name,
        "parameters": {each: writer.value(value, f"model.{each}") for each, value in parameters.items()},
        "fitted": {each: writer.value(value, f"model.{each}") for each, value in fitted.items()},
        "summary": writer.value(summary_of(model), "summary"),
        "notes": notes,
        **({} if steps is None else {"steps": steps}),
    }
    return {**structure, "objects": writer.objects}, writer


def put_together(
    structure: Mapping[str, object],
    arrays: Mapping[str, NDArray[np.generic]],
    device: str | None = None,
    features: Features | None = None,
) -> BaseEstimator:
    """The estimator of a structure, on `device`; by default on the device of the fit, or else the CPU.

    `features` are those of the fit, where there were any.
    """
    structure = upgraded(structure)
    steps = structure.get("steps")
    name, known = structure.get("estimator"), known_estimators()
    parameters, fitted = (structure.get(each) for each in ("parameters", "fitted"))
    if not isinstance(name, str) or name not in known:
        raise StorageError(f"The file holds an unknown estimator, {brief(name)}.")
    kind, declared = known[name], declaration_of(known[name])
    # settings that an earlier version did not have take their defaults
    names = set(kind._get_param_names())
    if not isinstance(parameters, dict) or not set(parameters) <= names:
        raise StorageError(f"The file has parameters that {name} does not have.")
    fields = {**declared.fitted, **declared.sometimes}
    if not isinstance(fitted, dict) or not set(declared.fitted) <= set(fitted) <= set(fields):
        raise StorageError(f"The file lacks fitted attributes of {name}, or has others.")
    asked = parameters.get("device", "cpu")
    if device is not None and device != "auto":
        place, asked = _device(device), ""
        if str(place) != device:
            raise StorageError(f"there is no device {device!r} here: leave device out, or load on the 'cpu'.")
    else:
        place = _device(fitted.get("device_", "cpu" if asked == "auto" else asked))
    reader = Reader(structure.get("objects"), arrays, place)
    settings = {each: SETTING_FIELDS.get(each, Field(SETTING_TYPES, is_record=True)) for each in names}
    given = reader.arguments({**parameters, **_local_settings(kind)}, settings, name, ())
    if "device" in names:
        given["device"] = "auto" if asked == "auto" else str(place)
    model = kind(**given)
    for each, value in reader.arguments(fitted, fields, name, declared.fitted).items():
        setattr(model, each, value)
    _attach(model, features, place)
    if "device" in names:
        vars(model)["device_"] = str(place)
    try:
        check_agreement(model, sum(array.size for array in arrays.values()))
    except ValueError as error:
        raise damaged(f"it holds {brief(error)}") from error
    if hasattr(model, "orbit_"):
        _add_derived_parts(model)
    return model if steps is None else pipeline_of(reader.value(steps), model)


def features_in(model: object) -> FixedFeatures | None:
    """The φ through which a fitted estimator sees its inputs, if it has any."""
    functional = getattr(model, "functional_", None)
    return None if functional is None else features_of(functional)


def _attach(model: object, given: Features | None, place: torch.device) -> None:
    """Give a model its φ again, which no file holds; its setting is then what was given, with its weights."""
    known = [] if (latent := features_in(model)) is None else [latent]
    if isinstance(model, ProcessModel) and (other := features_of(model.latent_functional)) is not None:
        known += [other] if other is not latent else []
    if given is not None and not known:
        raise StorageError(f"This {type(model).__name__} was fitted without features: leave out features=.")
    for each in known:
        if given is None:
            raise StorageError(each.missing())
        try:
            each.attach(given)
            each.place(place)
        except (TypeError, ValueError) as error:
            raise StorageError(str(error)) from error
        vars(model)["features"] = each.source


@runtime_checkable
class ProcessModel(Protocol):
    """A fitted estimator with a Gaussian-process prior."""

    n_features_in_: int
    posterior_: Posterior
    functional_: Functional
    orbit_: Orbit | None

    @property
    def latent_functional(self) -> Functional:
        """The functional by which a later fit lowers inputs."""
        ...


def check_agreement(model: object, num_numbers: int = 0) -> None:
    """Raise a ValueError if the parts of an estimator belong to different models.

    The work that a prediction may take is in proportion to `num_numbers`, the numbers in its file.
    """
    assert isinstance(model, Checked)
    model.check_parts()
    if isinstance(model, ProcessModel):
        _check_predictions(model, num_numbers)
        _check_orbit(model)


def _check_predictions(model: ProcessModel, num_numbers: int) -> None:
    """Predict two rows, unless that is more work than a file of this size may ask for."""
    posterior = model.posterior_
    tensors = [
        each
        for module in (model.functional_, posterior.process)
        for each in (*module.parameters(), *module.buffers())
    ]
    require(all(each.dtype != torch.float32 for each in tensors), "parts of different precision")
    probes, lowered = _probes(model), []
    for functional in (model.latent_functional, model.functional_):
        check_points(functional, posterior, num_numbers)
        rows = functional.atoms(probes, torch.Generator(probes.device).manual_seed(0))
        lowered.append(rows)
        require(rows.num_rows == 2 and rows.points.shape[-1] == posterior.width, "rows of another width")
        require(is_plain_numbers(rows.points) and is_plain_numbers(rows.weights), "rows that are not finite")
    with torch.no_grad():
        moments, mean = posterior.row_moments(lowered[-1]), posterior.row_mean(lowered[-1])
    shape = (2, posterior.num_outputs)
    require(moments.mean.shape == mean.shape == shape, "predictions of another shape")
    whole = (mean, moments.mean, moments.variance)
    require(all(is_plain_numbers(each) for each in whole), "predictions that are not finite")


def _probes(model: ProcessModel) -> torch.Tensor:
    """Two random rows for a trial prediction, on the device of the model."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, model.n_features_in_, generator=generator, dtype=torch.float64)
    parameter = next(model.posterior_.process.parameters(), rows)
    return rows.to(parameter.device)


def _check_orbit(model: ProcessModel) -> None:
    """Move a row along the orbit, to check that it fits the inputs."""
    probes, width, orbit = _probes(model), model.n_features_in_, model.orbit_
    if isinstance(orbit, DrawnOrbit):
        with torch.no_grad():
            noise = orbit.noise((2, 1), torch.Generator(probes.device).manual_seed(0), probes)
            require(orbit.move(probes, noise).shape == (2, 1, width), "an orbit of other inputs")
    elif orbit is not None:
        require(orbit.size is None or orbit.size <= MOST_POINTS, "an orbit of far too many points")
        require(orbit.points(probes[:1]).points.shape[-1] == width, "an orbit of other inputs")


def check_points(functional: Functional, posterior: Posterior, num_numbers: int) -> None:
    """Raise a ValueError if a prediction would compare too many points.

    Composed orbits multiply their numbers of points, so the points are counted before any is made. A
    prediction compares all points of a row with each other and with those of the posterior, unless a group of
    moves leaves the kernel unchanged. The pairs of two rows are in memory at once. The pairs with the rows of
    the posterior only take time, so a larger file may have more of them.
    """
    orbit = getattr(getattr(functional, "average", functional), "orbit", None)
    is_one_sided = isinstance(orbit, FiniteOrbit) and orbit.symmetry is not None
    rows = as_blocks(posterior.rows) if isinstance(posterior, ExactPosterior) else []
    held = sum(math.prod(each.points.shape[:2]) for each in rows)
    moved = most_atoms(functional)
    most = MOST_POINTS if is_one_sided else math.isqrt(MOST_PAIRS)
    require(
        moved <= most,
        f"a functional of far too many points: it moves a row to {moved:,}, and {most:,} are allowed",
    )
    widest = max((each.points.shape[1] for each in rows), default=0)
    fits = moved * widest <= MOST_PAIRS and moved * held <= MOST_PAIRS + PAIRS_PER_NUMBER * num_numbers
    require(
        is_one_sided or fits,
        f"far too many pairs of points: {moved:,} of every new row with {held:,} of the posterior",
    )


def most_atoms(functional: Functional) -> int:
    """An upper bound on the number of points to which a functional moves a row."""
    if isinstance(functional, Composition):
        return most_atoms(functional.outer) * most_atoms(functional.inner)
    if isinstance(functional, Combination):
        return sum(most_atoms(part) for part in functional.parts if isinstance(part, Functional))
    if isinstance(functional, OrbitAverage | OrbitSum):
        orbit = functional.orbit if isinstance(functional, OrbitAverage) else functional.average.orbit
        count = getattr(orbit, "num_samples", None) if orbit.is_drawn else orbit.size
        return max(1, count or 1)
    return 1 if isinstance(functional, FeatureMap) else 3


def _add_derived_parts(model: Any) -> None:
    """Add to a loaded Gaussian process the attributes that follow from others and are not stored."""
    if model.orbit_ is None and "orbit_" in vars(model):
        # earlier versions stored learned orbits only
        model.orbit_ = orbit_in(model.functional_, model.n_features_in_)
    if isinstance(model.orbit_, FiniteOrbit) and model.form_.image_shape is not None:
        model.orbit_.image_shape = check_image_shape(model.form_.image_shape)
    model.fit_result_ = FitResult(
        model.posterior_,
        model.functional_,
        model.log_evidence_,
        model.evidence_kind_,
        model.log_evidence_error_,
        model.converged_,
        NoObjective(),
        () if model.orbit_ is None else list(model.orbit_.parameters()),
        # the history of a kernel search holds structures, not numbers
        history=[each for each in model.history_ if isinstance(each, int | float)],
        certificate=getattr(model, "certificate_", None),
    )


def _device(name: object) -> torch.device:
    if not isinstance(name, str) or not re.fullmatch(r"(cpu|mps|cuda)(:\d{1,3})?", name):
        raise StorageError(
            f"device must be 'cpu', 'mps', 'cuda' or one with a number such as 'cuda:1', not {brief(name)}."
        )
    place = torch.device(name)
    # GPUs without double precision do not serve
    is_here = place.type == "cuda" and (place.index or 0) < torch.cuda.device_count()
    return place if is_here else torch.device("cpu")


def _find_errors(model: Any, error_seconds: float) -> list[str]:
    """Compute missing error bars if `error_seconds` allow it; return notes if they stay missing."""
    if getattr(model, "orbit_", None) is None or model.knows_orbit_errors:
        return []
    if isinstance(model.fit_result_.objective, NoObjective):
        return [
            "orbit_errors_ was left out: it was missing from the model file from which this model was loaded"
        ]
    if error_seconds <= 0:
        return ["orbit_errors_ was left out: it was not computed; read it from the model before saving"]
    try:
        if model.expected_error_seconds() > error_seconds:
            return ["orbit_errors_ was left out: it takes long to compute; read it before saving"]
        _ = model.orbit_errors_
    except (ValueError, RuntimeError) as error:
        return [f"orbit_errors_ was left out: {brief(error)}"]
    return []


def _leave_out_code(parameters: dict[str, Any]) -> list[str]:
    """Leave out an invariance that is code; the machine keeps the rows or copies that it made."""
    try:
        Writer().value(parameters.get("invariance"), "invariance")
    except StorageError as error:
        parameters["invariance"] = None
        return [f"invariance was left out: {brief(error)}"]
    return []


NUMBER_OF = replace(COUNT, kinds=(int,))
SOLVED_GAP = 1e-4
"""The gap, relative to the risk, up to which a machine has converged."""
SUMMARY = {
    "converged": FLAG,
    "evidence_kind": TEXT,
    "functional": TEXT,
    "image_shape": SHAPE,
    "inference": TEXT,
    "kernel": TEXT,
    "learned": Field((dict,), Field((tuple, list)), is_record=True),
    "learned_errors": Field((dict,), Field((int, float)), is_record=True),
    "learned_text": TEXT,
    "log_evidence": REPORTED,
    "log_evidence_error": REPORTED,
    "n_features": NUMBER_OF,
    "noise": Field((list, int, float), Field((int, float)), is_record=True),
    "orbit": TEXT_OR_NONE,
}
SUMMARY_OPTIONAL = {
    "certificate": TEXT,
    "channels": TEXT_OR_NONE,
    "classes": Field((list,), TEXT),
    "features": TEXT,
    "learned_error_text": TEXT,
    "num_rows": NUMBER_OF,
}
TOP_LEVEL = {"estimator": TEXT, "notes": Field((list,), TEXT), "versions": Field((dict,), TEXT)}


def summary_in(structure: dict[str, Any]) -> dict[str, Any]:
    """The summary in a file, with the type of each entry checked."""
    summary = structure.get("summary")
    given = summary.get("mapping") if isinstance(summary, dict) else None
    if not isinstance(given, dict):
        raise StorageError("The file is damaged or hostile: it has no summary.")
    reader = Reader()
    about = reader.arguments(given, SUMMARY | SUMMARY_OPTIONAL, "its summary", SUMMARY)
    top_level = {name: structure.get(name) for name in TOP_LEVEL}
    top_level["versions"] = {"mapping": top_level["versions"]}
    return {**about, **reader.arguments(top_level, TOP_LEVEL, "the file", TOP_LEVEL)}


def summary_of(model: Any) -> dict[str, Any]:
    """The summary of a model that `describe` reads without loading the model."""
    summary = {
        "n_features": model.n_features_in_,
        "image_shape": model.form_.image_shape,
        "channels": model.form_.channels,
        "log_evidence": getattr(model, "log_evidence_", math.nan),
        "log_evidence_error": getattr(model, "log_evidence_error_", 0.0),
        "evidence_kind": getattr(model, "evidence_kind_", "not computed"),
        "noise": [],
        "orbit": None,
        "learned": {},
        "learned_errors": {},
    }
    if hasattr(model, "svc_"):
        summary |= _vectors_summary(model)
    else:
        summary |= _machine_summary(model) if hasattr(model, "machine_") else _process_summary(model)
    if hasattr(model, "classes_"):
        summary["classes"] = [str(each) for each in model.classes_[:100]]
    if hasattr(model, "certificate_"):
        summary["certificate"] = str(model.certificate_)
    return summary


def _process_summary(model: Any) -> dict[str, Any]:
    summary = {
        "inference": getattr(model, "inference_", "sparse"),
        "converged": model.converged_,
        "noise": np.asarray(getattr(model, "noise_", [])).tolist(),
        "kernel": type(model.kernel_).__name__,
        "functional": type(model.functional_).__name__,
        "features": "" if (held := features_in(model)) is None else held.fingerprint,
        "learned_text": "",
        "learned_error_text": "",
    }
    if (orbit := getattr(model, "orbit_", None)) is None:
        return summary
    errors = model.orbit_errors_ if model.knows_orbit_errors else {}
    intervals = model.orbit_intervals_ if errors else {}
    return summary | {
        "orbit": type(orbit).__name__,
        "learned": orbit.learned(),
        "learned_text": orbit.describe(),
        "learned_errors": errors,
        "learned_error_text": describe_certainty(orbit.learned(), errors, intervals, orbit.units()),
    }


def _machine_summary(model: Any) -> dict[str, Any]:
    invariance = getattr(model, "invariance", None)
    name = invariance if isinstance(invariance, str) else type(invariance).__name__
    return {
        "inference": "regularised risk",
        "converged": bool((model.gap_ <= SOLVED_GAP * model.objective_).all()),
        "kernel": type(model.machine_.process.kernel).__name__,
        "functional": "Evaluation" if invariance is None else name,
        "learned_text": f"C = {model.C_:.4g}, strength = {model.strength_:.4g}, "
        f"bandwidth = {model.bandwidth_:.4g}",
        "num_rows": len(model.machine_.coefficients),
    }


def _vectors_summary(model: Any) -> dict[str, Any]:
    invariance = model.invariance
    return {
        "inference": "support vectors",
        "converged": model.svc_.fit_status_ == 0,
        "kernel": "RBFKernel",
        "functional": "Evaluation",
        "orbit": None if invariance is None or isinstance(invariance, str) else type(invariance).__name__,
        "learned_text": f"C = {model.C:.4g}, bandwidth = {model.bandwidth_:.4g}, "
        f"{len(model.svc_.support_)} support vectors",
        "num_rows": model.num_samples_,
    }
