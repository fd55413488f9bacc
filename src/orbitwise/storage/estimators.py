"""Which estimators are stored, what each remembers of its fit, and how one is taken apart and made again.

A new estimator is one entry of `ESTIMATORS`.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.forms import InputForm
from orbitwise.estimators.kernel_ridge import InvariantKernelRidge
from orbitwise.estimators.laplacian import LaplacianSVC
from orbitwise.estimators.learned_ranges import expected_seconds
from orbitwise.estimators.regression_model import RegressionModel, TargetScale
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.estimators.sparse_regressor import SparseGPRegressor, Stream
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.estimators.virtual import VirtualSVC
from orbitwise.functionals.averages import orbit_in
from orbitwise.functionals.functional import Functional
from orbitwise.inference.fit_result import FitResult
from orbitwise.inference.posterior import Posterior
from orbitwise.inference.sparse.certificate import Certificate
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.losses import Loss
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit
from orbitwise.selection.search.auto import AutoGPRegressor
from orbitwise.storage import machines, searches, support_vectors
from orbitwise.storage.agreement import check_agreement
from orbitwise.storage.container import StorageError, brief
from orbitwise.storage.kernels import KERNELS
from orbitwise.storage.orbits import ORBITS
from orbitwise.storage.posteriors import NUMBERS, POSITIVE_NUMBERS, POSTERIORS, Problem
from orbitwise.storage.reader import Reader
from orbitwise.storage.recipes import RECORD, Field
from orbitwise.storage.streams import STREAMS
from orbitwise.storage.summaries import summary_of
from orbitwise.storage.writer import Writer
from orbitwise.transforms.images import check_image_shape

TABLE = {
    **KERNELS,
    **ORBITS,
    **POSTERIORS,
    **STREAMS,
    **machines.MACHINES,
    **support_vectors.SUPPORT_VECTORS,
}


@final
@dataclass(frozen=True)
class Estimator:
    """A class of estimators, the fitted attributes it must have, and those it may have."""

    kind: type
    fitted: Mapping[str, Field]
    optional: Mapping[str, Field]


@final
class NoObjective:
    """Stands for the objective of a fit, which needs the training data."""

    def __call__(self) -> Tensor:
        raise ValueError(
            "The error bars of this orbit need the training data, and were not computed before the model was "
            "saved: ask the fitted model for orbit_errors_, then save it."
        )


NUMBER = Field((int, float))
NOISE = Field((int, float, np.ndarray), least=0)
FITTED = {
    "_background": NUMBER,
    "_image_shape": Field((tuple, list, NoneType), each=int, least=1),
    "converged_": Field(bool),
    "evidence_kind_": Field(str),
    "functional_": Field(Functional),
    "history_": Field(list, each=(int, float), is_record=True),
    "kernel_": Field(Kernel),
    "log_evidence_": RECORD,
    "log_evidence_error_": RECORD,
    "n_features_in_": Field(int, least=1),
    "orbit_": Field((Orbit, NoneType)),
    "posterior_": Field(Posterior),
}
REGRESSION = {
    **FITTED,
    "_is_vector": Field(bool),
    "_scale": POSITIVE_NUMBERS,
    "_shift": NUMBERS,
    "noise_": NOISE,
}
OPTIONAL = {
    "_input_shape": Field((tuple, list), each=int, least=1),
    "_orbit_errors": Field(dict, each=(int, float), is_record=True),
    "_orbit_intervals": Field(dict, each=(tuple, list), is_record=True),
    "channels_": Field((str, NoneType)),
    "feature_names_in_": Field(np.ndarray),
    "search_": Field(list, each=dict, is_record=True),
    "stopped_by_": Field(str),
}
ADDED = {
    "channels": "auto",
    "likelihood": "gaussian",
    "max_nodes": None,
    "max_seconds": None,
    "tilts": "remembered",
}
"""Parameters that files of earlier versions do not have, and what they stand for there."""
LEFT_OUT = {"fit_result_", "form_", "model_", "scale_", "target_scale_"}
"""Not stored, or stored under the names of earlier versions."""
WITHIN = {"_functional", "_model", "_problem_"}
"""Parts of `model_` under the names of earlier versions."""
PLAIN = (
    *(NoneType, bool, int, float, str, tuple, list, dict, np.ndarray),
    *(Kernel, Likelihood, Orbit, Functional, Loss),
)

ESTIMATORS = {
    "AutoGPRegressor": Estimator(AutoGPRegressor, searches.FITTED, searches.OPTIONAL),
    "InvariantGPClassifier": Estimator(
        InvariantGPClassifier,
        {
            **FITTED,
            "_problem_": Field(Problem),
            "_scale": Field((int, float), least=0),
            "classes_": Field(np.ndarray),
            "inference_": Field(str),
        },
        {**OPTIONAL, "noise_": Field((int, float), least=0), "leave_one_out_log_loss_": RECORD},
    ),
    "InvariantGPRegressor": Estimator(
        InvariantGPRegressor,
        {
            **{name: each for name, each in REGRESSION.items() if name != "noise_"},
            "_functional": Field(Functional),
            "_model": Field(RegressionModel),
            "inference_": Field(str),
            "observation_noise_": Field(list, each=(int, float, np.ndarray), least=0),
        },
        {
            **OPTIONAL,
            "certificate_": Field(Certificate),
            "evidence_terms_": Field(dict, each=(int, float), is_record=True),
            "jitter_": RECORD,
            "noise_": NOISE,
        },
    ),
    "InvariantKernelRidge": Estimator(
        InvariantKernelRidge, {**machines.FITTED, "_is_vector": Field(bool)}, machines.OPTIONAL
    ),
    "InvariantSVC": Estimator(InvariantSVC, machines.CLASSIFIER, machines.OPTIONAL),
    "LaplacianSVC": Estimator(
        LaplacianSVC, {**machines.CLASSIFIER, "num_neighbours_": Field(int)}, machines.OPTIONAL
    ),
    "SparseGPRegressor": Estimator(
        SparseGPRegressor,
        {**REGRESSION, "_stream": Field(Stream), "certificate_": Field(Certificate)},
        OPTIONAL,
    ),
    "VirtualSVC": Estimator(VirtualSVC, support_vectors.FITTED, support_vectors.OPTIONAL),
}


PARAMETERS = {
    "image_shape": Field((tuple, list, NoneType), each=int, least=1),
    "random_state": Field((int, NoneType), least=0, most=2**32 - 1),
    "verbose": Field((bool, int)),
    "warm_start": Field(bool),
}
"""What some settings must be; the others are checked when they are used, by `fit`."""
OWN = ("callback", "checkpoint", "n_jobs")
"""Settings of the machine and the program that a model is used in: none is stored, and none is read."""


def _own_settings(kind: type) -> dict[str, Any]:
    """The defaults of the settings that no file may choose, such as the folder that `fit` writes to."""
    known = inspect.signature(kind).parameters
    return {each: known[each].default for each in OWN if each in known}


def take_apart(model: Any, error_seconds: float = 0.0) -> tuple[dict[str, Any], Writer]:
    """The structure of a fitted estimator, and the writer that holds its objects and arrays."""
    name = type(model).__name__
    known = ESTIMATORS.get(name)
    if known is None or type(model) is not known.kind:
        raise StorageError(f"A {name} cannot be stored; {', '.join(ESTIMATORS)} can.")
    if missing := [each for each in known.fitted if each not in WITHIN and not hasattr(model, each)]:
        raise StorageError(f"This {name} is not fitted, it has no {missing[0]}: call fit before save.")
    parameters = model.get_params(deep=False)
    fields = {**known.fitted, **known.optional}
    notes = _find_errors(model, error_seconds)
    if parameters.get("callback") is not None:
        notes.append("callback was left out: it is not plain data")
    if isinstance(parameters.get("random_state"), np.random.RandomState):
        parameters["random_state"] = None
        notes.append("random_state was left out: it is not plain data")
    parameters |= _own_settings(known.kind)
    if hasattr(model, "machine_") or hasattr(model, "svc_"):
        notes += _leave_out_code(parameters)
    others = set(vars(model)) - set(parameters) - set(fields) - LEFT_OUT
    notes += [f"{each} was left out: it is no attribute of a fit" for each in sorted(others)]
    writer = Writer(TABLE)
    fitted = {each: getattr(model, each) for each in fields if hasattr(model, each)}
    if "_problem_" in fields:
        fitted["_problem_"] = Problem.of(model.model_)
    elif "_model" in fields:
        fitted["_model"] = model.model_
    if "_functional" in fields:
        fitted["_functional"] = model.model_.latent.functional
    if fitted.get("_input_shape", ()) is None:
        del fitted["_input_shape"]
    if "search_" in fitted:
        # the same fit gives the same file, however long it took
        fitted["search_"] = [{**stage, "seconds": math.nan} for stage in fitted["search_"]]
    structure = {
        "estimator": name,
        "parameters": {each: writer.value(value, f"model.{each}") for each, value in parameters.items()},
        "fitted": {each: writer.value(value, f"model.{each}") for each, value in fitted.items()},
        "summary": writer.value(summary_of(model), "summary"),
        "notes": notes,
    }
    return {**structure, "objects": writer.objects}, writer


def put_together(structure: dict[str, Any], arrays: Mapping[str, Any], device: str | None = None) -> Any:
    """The estimator of a structure, on `device`, or where it was if that is here, or on the CPU."""
    known = ESTIMATORS.get(structure["estimator"]) if isinstance(structure.get("estimator"), str) else None
    parameters, fitted = (structure.get(each) for each in ("parameters", "fitted"))
    if known is None:
        raise StorageError(f"The file holds an unknown estimator, {brief(structure.get('estimator'))}.")
    names = set(known.kind._get_param_names())
    if isinstance(parameters, dict):
        later = {each: value for each, value in ADDED.items() if each in names}
        parameters = {**later, **parameters}
    if not isinstance(parameters, dict) or set(parameters) != names:
        raise StorageError(f"The file has other parameters than those of {known.kind.__name__}.")
    fields = {**known.fitted, **known.optional}
    if not isinstance(fitted, dict) or not set(known.fitted) <= set(fitted) <= set(fields):
        raise StorageError(f"The file has other attributes than those of {known.kind.__name__}.")
    place = _place(parameters.get("device", "cpu") if device is None else device)
    reader = Reader(TABLE, structure.get("objects"), arrays, place)
    parameters = {**parameters, **_own_settings(known.kind)}
    settings = {each: PARAMETERS.get(each, Field(PLAIN, is_record=True)) for each in parameters}
    given = reader.arguments(parameters, settings, known.kind.__name__)
    if "device" in given:
        given["device"] = str(place)
    model = known.kind(**given)
    values = reader.arguments(fitted, {each: fields[each] for each in fitted}, known.kind.__name__)
    _gather(values)
    for each, value in values.items():
        setattr(model, each, value)
    try:
        check_agreement(model, sum(array.size for array in arrays.values()))
        if "orbit_" in values and values["orbit_"] is None:
            # earlier versions remembered learned orbits only
            model.orbit_ = orbit_in(model.functional_, model.n_features_in_)
    except ValueError as error:
        raise StorageError(f"The file is damaged or hostile: it holds {brief(error)}.") from error
    if hasattr(model, "orbit_"):
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
            history=model.history_,
            certificate=getattr(model, "certificate_", None),
        )
    return model


def _gather(values: dict[str, Any]) -> None:
    """Gather what files hold one by one: the form of inputs, the scale of targets or probabilities."""
    if "_image_shape" in values:
        image, own = values.pop("_image_shape"), values.pop("_input_shape", None)
        # earlier versions took all images for ones with the channels first
        usual = "first" if image is not None and len(image) == 3 else None
        channels, background = values.pop("channels_", usual), values.pop("_background", 0.0)
        if channels not in (None, "first", "last"):
            raise StorageError("The file is damaged or hostile: its channels are neither first nor last.")
        shapes = [None if each is None else tuple(each) for each in (image, own)]
        values["form_"] = InputForm(shapes[0], channels, shapes[1], background)
    if "_shift" in values:
        parts = (values.pop(each) for each in ("_shift", "_scale", "_is_vector"))
        values["target_scale_"] = TargetScale(*parts)
    elif "_scale" in values:
        values["scale_"] = values.pop("_scale")
    if "_problem_" in values:
        values["model_"] = values.pop("_problem_").model
    if "_model" in values:
        model = values.pop("_model")
        values["model_"] = model.at(values.pop("_functional", model.latent.functional))


def _place(name: Any) -> torch.device:
    if not isinstance(name, str) or not re.fullmatch(r"(cpu|mps|cuda)(:\d{1,3})?", name):
        raise StorageError(f"device must be 'cpu', 'mps' or 'cuda', with a number or not, not {brief(name)}.")
    place = torch.device(name)
    if place.type == "cuda":
        is_here = torch.cuda.is_available() and (place.index or 0) < torch.cuda.device_count()
    else:
        is_here = place.type == "cpu" or torch.backends.mps.is_available()
    return place if is_here else torch.device("cpu")


def _find_errors(model: Any, error_seconds: float) -> list[str]:
    """Why the error bars of learned ranges are missing; they are computed only within `error_seconds`."""
    orbit = getattr(model, "orbit_", None)
    if orbit is None or not orbit.learned() or hasattr(model, "_orbit_errors"):
        return []
    if isinstance(model.fit_result_.objective, NoObjective):
        return ["orbit_errors_ was not there"]
    if error_seconds <= 0:
        return ["orbit_errors_ was left out: it was not computed; ask the fitted model for it before saving"]
    try:
        if expected_seconds(model.fit_result_.objective, list(model.fit_result_.parameters)) > error_seconds:
            return ["orbit_errors_ was left out: it takes long; ask for it before saving"]
        _ = model.orbit_errors_
    except (ValueError, RuntimeError) as error:
        return [f"orbit_errors_ was left out: {brief(error)}"]
    return []


def _leave_out_code(parameters: dict[str, Any]) -> list[str]:
    """Leave out an invariance that is code: the rows or copies that it made are part of the machine."""
    try:
        Writer(TABLE).value(parameters.get("invariance"), "invariance")
    except StorageError as error:
        parameters["invariance"] = None
        return [f"invariance was left out: {brief(error)}"]
    return []
