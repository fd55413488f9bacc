"""Which estimators are stored, what each remembers of its fit, and how one is taken apart and made again."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.svm import SVC
from torch import Tensor

from orbitwise.declarations import COUNT, SMALLEST, Field
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.engines import Problem
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
from orbitwise.inference.posterior import Posterior
from orbitwise.inference.risk.problem import Machine
from orbitwise.inference.sparse.certificate import Certificate
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.losses import Loss
from orbitwise.orbits.certainty import describe_certainty
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit
from orbitwise.selection.search.auto import AutoGPRegressor
from orbitwise.storage.agreement import check_agreement
from orbitwise.storage.container import StorageError, brief
from orbitwise.storage.reader import Reader
from orbitwise.storage.writer import Writer
from orbitwise.transforms.images import check_image_shape


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


TEXT = Field((str,))
WHOLE = Field((int,), least=1)
NUMBER = Field((int, float))
NUMBERS = Field((int, float, np.ndarray), least=0)
POSITIVE_NUMBER = Field((int, float), least=SMALLEST)
RECORDED = Field((int, float), is_record=True)
ARRAY = Field((np.ndarray,), is_record=True)
DOUBLES = Field((Tensor,), dtypes=("float64",))
SHAPE = Field((tuple, list, NoneType), Field((int,)), least=1)
MAYBE_TEXT = Field((str, NoneType))
FORM = {"_image_shape": SHAPE, "n_features_in_": WHOLE}
OPTIONAL = {"_input_shape": SHAPE, "channels_": MAYBE_TEXT, "feature_names_in_": ARRAY}
EVIDENCE = {
    "converged_": Field((bool,)),
    "evidence_kind_": TEXT,
    "functional_": Field((Functional,)),
    "kernel_": Field((Kernel,)),
    "log_evidence_": RECORDED,
    "log_evidence_error_": RECORDED,
    "posterior_": Field((Posterior,)),
}
FITTED = {
    **FORM,
    **EVIDENCE,
    "_background": NUMBER,
    "history_": Field((list,), Field((int, float)), is_record=True),
    "orbit_": Field((Orbit, NoneType)),
}
TARGETS = {
    "_is_vector": Field((bool,)),
    "_scale": replace(DOUBLES, least=SMALLEST),
    "_shift": DOUBLES,
}
LEARNED = {
    **OPTIONAL,
    "_orbit_errors": Field((dict,), Field((int, float)), is_record=True),
    "_orbit_intervals": Field((dict,), Field((tuple, list)), is_record=True),
    "search_": Field((list,), Field((dict,)), is_record=True),
    "stopped_by_": TEXT,
}
MACHINE = {
    **FORM,
    "C_": replace(NUMBER, least=0),
    "bandwidth_": POSITIVE_NUMBER,
    "gap_": ARRAY,
    "machine_": Field((Machine,)),
    "n_iter_": ARRAY,
    "objective_": ARRAY,
    "strength_": replace(NUMBER, least=0),
}
LABELS = {"classes_": ARRAY}
MACHINE_CLASSIFIER = {**MACHINE, **LABELS, "scale_": replace(NUMBER, least=0)}
MACHINE_OPTIONAL = {**OPTIONAL, "cv_error_": RECORDED, "evidence_kind_": TEXT, "log_evidence_": RECORDED}
ADDED = {
    "channels": "auto",
    "likelihood": "gaussian",
    "max_nodes": None,
    "max_seconds": None,
    "tilts": "remembered",
}
"""Parameters that files of earlier versions do not have, and what they stand for there."""
LEFT_OUT = {"_half_bound", "_objective", "_learned_parameters", "form_", "scale_", "target_scale_"}
"""Not stored, or stored under the names of earlier versions."""
PLAIN = (
    *(NoneType, bool, int, float, str, tuple, list, dict, np.ndarray),
    *(Kernel, Likelihood, Orbit, Functional, Loss),
)

ESTIMATORS = {
    "AutoGPRegressor": Estimator(
        AutoGPRegressor,
        {
            **EVIDENCE,
            **TARGETS,
            "_claims": Field((list,), Field((tuple, list))),
            "_extents": Field((np.ndarray,)),
            "_model": Field((RegressionModel,)),
            "_shares": Field((list,), Field((int, float)), is_record=True),
            "dates_": Field((bool,)),
            "history_": Field((list,), Field((dict,))),
            "inference_": TEXT,
            "invariance_": MAYBE_TEXT,
            "n_features_in_": WHOLE,
            "noise_": replace(NUMBER, least=0),
            "score_": RECORDED,
            "search_rows_": replace(COUNT, kinds=(int,)),
            "spelling_": TEXT,
        },
        {"feature_names_in_": ARRAY, "stopped_": TEXT},
    ),
    "InvariantGPClassifier": Estimator(
        InvariantGPClassifier,
        {
            **FITTED,
            **LABELS,
            "_problem_": Field((Problem,)),
            "_scale": replace(NUMBER, least=0),
            "inference_": TEXT,
        },
        {**LEARNED, "noise_": replace(NUMBER, least=0), "leave_one_out_log_loss_": RECORDED},
    ),
    "InvariantGPRegressor": Estimator(
        InvariantGPRegressor,
        {
            **FITTED,
            **TARGETS,
            "_functional": Field((Functional,)),
            "_model": Field((RegressionModel,)),
            "inference_": TEXT,
            "observation_noise_": Field((list,), Field((int, float, np.ndarray)), least=0),
        },
        {
            **LEARNED,
            "certificate_": Field((Certificate,)),
            "evidence_terms_": Field((dict,), Field((int, float)), is_record=True),
            "jitter_": RECORDED,
            "noise_": NUMBERS,
        },
    ),
    "InvariantKernelRidge": Estimator(
        InvariantKernelRidge, {**MACHINE, "_is_vector": Field((bool,))}, MACHINE_OPTIONAL
    ),
    "InvariantSVC": Estimator(InvariantSVC, MACHINE_CLASSIFIER, MACHINE_OPTIONAL),
    "LaplacianSVC": Estimator(
        LaplacianSVC, {**MACHINE_CLASSIFIER, "num_neighbours_": WHOLE}, MACHINE_OPTIONAL
    ),
    "SparseGPRegressor": Estimator(
        SparseGPRegressor,
        {
            **FITTED,
            **TARGETS,
            "_stream": Field((Stream,)),
            "certificate_": Field((Certificate,)),
            "noise_": NUMBERS,
        },
        LEARNED,
    ),
    "VirtualSVC": Estimator(
        VirtualSVC,
        {
            **FORM,
            **LABELS,
            "bandwidth_": POSITIVE_NUMBER,
            "num_samples_": replace(COUNT, kinds=(int,), least=1),
            "svc_": Field((SVC,)),
        },
        OPTIONAL,
    ),
}
"""The estimators, the fitted attributes that each must have, and those it may have."""
PARAMETERS = {
    "image_shape": SHAPE,
    "random_state": Field((int, NoneType), least=0, most=2**32 - 1),
    "verbose": Field((bool, int)),
    "warm_start": Field((bool,)),
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
    if missing := [each for each in known.fitted if not hasattr(model, each)]:
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
    writer = Writer()
    fitted = {each: getattr(model, each) for each in fields if hasattr(model, each)}
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
    reader = Reader(structure.get("objects"), arrays, place)
    parameters = {**parameters, **_own_settings(known.kind)}
    settings = {each: PARAMETERS.get(each, Field(PLAIN, is_record=True)) for each in parameters}
    given = reader.arguments(parameters, settings, known.kind.__name__, settings)
    if "device" in given:
        given["device"] = str(place)
    model = known.kind(**given)
    values = reader.arguments(fitted, fields, known.kind.__name__, known.fitted)
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
        model._objective, model._learned_parameters = NoObjective(), []
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
    if isinstance(model._objective, NoObjective):
        return ["orbit_errors_ was not there"]
    if error_seconds <= 0:
        return ["orbit_errors_ was left out: it was not computed; ask the fitted model for it before saving"]
    try:
        if expected_seconds(model._objective, model._learned_parameters) > error_seconds:
            return ["orbit_errors_ was left out: it takes long; ask for it before saving"]
        _ = model.orbit_errors_
    except (ValueError, RuntimeError) as error:
        return [f"orbit_errors_ was left out: {brief(error)}"]
    return []


def _leave_out_code(parameters: dict[str, Any]) -> list[str]:
    """Leave out an invariance that is code: the rows or copies that it made are part of the machine."""
    try:
        Writer().value(parameters.get("invariance"), "invariance")
    except StorageError as error:
        parameters["invariance"] = None
        return [f"invariance was left out: {brief(error)}"]
    return []


NUMBER_OF = replace(COUNT, kinds=(int,))
ACCEPTED = 1e-4
"""The gap, in parts of the risk, up to which a machine counts as solved."""
SUMMARY = {
    "converged": Field((bool,)),
    "evidence_kind": TEXT,
    "functional": TEXT,
    "image_shape": SHAPE,
    "inference": TEXT,
    "kernel": TEXT,
    "learned": Field((dict,), Field((tuple, list)), is_record=True),
    "learned_errors": Field((dict,), Field((int, float)), is_record=True),
    "learned_text": TEXT,
    "log_evidence": RECORDED,
    "log_evidence_error": RECORDED,
    "n_features": NUMBER_OF,
    "noise": Field((list, int, float), Field((int, float)), is_record=True),
    "orbit": MAYBE_TEXT,
}
SUMMARY_OPTIONAL = {
    "certificate": TEXT,
    "channels": MAYBE_TEXT,
    "classes": Field((list,), TEXT),
    "learned_error_text": TEXT,
    "num_rows": NUMBER_OF,
}
BESIDE = {"estimator": TEXT, "notes": Field((list,), TEXT), "versions": Field((dict,), TEXT)}


def told(structure: dict[str, Any]) -> dict[str, Any]:
    """What a file says of itself, each entry of its type, or a StorageError."""
    summary = structure.get("summary")
    given = summary.get("mapping") if isinstance(summary, dict) else None
    if not isinstance(given, dict):
        raise StorageError("The file is damaged or hostile: it has no summary.")
    reader = Reader()
    about = reader.arguments(given, SUMMARY | SUMMARY_OPTIONAL, "its summary", SUMMARY)
    beside = {name: structure.get(name) for name in BESIDE}
    beside["versions"] = {"mapping": beside["versions"]}
    return {**about, **reader.arguments(beside, BESIDE, "the file", BESIDE)}


def summary_of(model: Any) -> dict[str, Any]:
    """What people want to know of a model before they load it."""
    summary = {
        "n_features": model.n_features_in_,
        "image_shape": getattr(model, "_image_shape", None),
        "channels": getattr(model, "channels_", None),
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
        "learned_text": "",
        "learned_error_text": "",
    }
    if (orbit := getattr(model, "orbit_", None)) is None:
        return summary
    errors = getattr(model, "_orbit_errors", {})
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
        "converged": bool((model.gap_ <= ACCEPTED * model.objective_).all()),
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
