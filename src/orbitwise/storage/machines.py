"""Recipes of kernel machines and of losses, and what estimators on a machine remember of their fit.

A machine is a sum over its rows, so it includes the inputs of its training rows, labelled or not.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

import numpy as np

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.gradients import Gradients
from orbitwise.inference.risk.machine import Machine, basis_rows
from orbitwise.losses import EpsilonInsensitive, Hinge, Logistic, Squared, SquaredHinge
from orbitwise.process.process import Process
from orbitwise.storage.posteriors import TENSOR, require
from orbitwise.storage.recipes import Field, Recipe, table_of

NUMBER = Field((int, float))
ARRAY = Field(np.ndarray)
FITTED = {
    "C_": NUMBER,
    "_image_shape": Field((tuple, list, NoneType), each=int),
    "bandwidth_": NUMBER,
    "gap_": ARRAY,
    "machine_": Field(Machine),
    "n_features_in_": Field(int),
    "n_iter_": ARRAY,
    "objective_": ARRAY,
    "strength_": NUMBER,
}
CLASSIFIER = {**FITTED, "classes_": ARRAY, "scale_": NUMBER}
OPTIONAL = {
    "channels_": Field((str, NoneType)),
    "cv_error_": NUMBER,
    "evidence_kind_": Field(str),
    "feature_names_in_": ARRAY,
    "log_evidence_": NUMBER,
}
ACCEPTED = 1e-4
"""The gap, in parts of the risk, up to which a machine counts as solved."""


def _check_machine(machine: Machine) -> None:
    require(len(machine.rows) > 0, "no rows")
    require(len({block.points.shape[-1] for block in machine.rows}) == 1, "rows of different widths")
    count = sum(block.num_rows for block in machine.rows)
    require(machine.coefficients.dim() == machine.beta.dim() == 2, "coefficients that are no matrix")
    require(len(machine.coefficients) == count, "coefficients of other rows")
    width = basis_rows([machine.rows[0].rows(slice(0, 1))], machine.basis).shape[1]
    require(machine.beta.shape == (width, machine.coefficients.shape[1]), "coefficients of another basis")


MACHINES = table_of(
    Recipe(Logistic),
    Recipe(Hinge, {"width": NUMBER}),
    Recipe(SquaredHinge),
    Recipe(Squared),
    Recipe(EpsilonInsensitive, {"epsilon": NUMBER, "width": NUMBER}),
    Recipe(
        Machine,
        {
            "process": Field(Process),
            "rows": Field(list, each=(Atoms, Gradients)),
            "coefficients": TENSOR,
            "beta": TENSOR,
            "basis": Field(str),
        },
        check=_check_machine,
    ),
)


def check_machine_of(model: Any) -> None:
    """Raise a ValueError where an estimator's machine is one of other inputs or classes."""
    machine, classes = model.machine_, getattr(model, "classes_", None)
    require(machine.rows[0].points.shape[-1] == model.n_features_in_, "a machine of other inputs")
    if classes is not None:
        outputs = 1 if len(classes) == 2 else len(classes)
        require(machine.coefficients.shape[1] == outputs, "a machine of other classes")


def machine_summary(model: Any) -> dict[str, Any]:
    """What people want to know of a kernel machine before they load it."""
    machine, invariance = model.machine_, getattr(model, "invariance", None)
    name = invariance if isinstance(invariance, str) else type(invariance).__name__
    return {
        "n_features": model.n_features_in_,
        "image_shape": model._image_shape,
        "channels": getattr(model, "channels_", None),
        "inference": "regularised risk",
        "converged": bool((model.gap_ <= ACCEPTED * model.objective_).all()),
        "log_evidence": getattr(model, "log_evidence_", float("nan")),
        "log_evidence_error": 0.0,
        "evidence_kind": getattr(model, "evidence_kind_", "not computed"),
        "noise": [],
        "kernel": type(machine.process.kernel).__name__,
        "functional": "Evaluation" if invariance is None else name,
        "orbit": None,
        "learned": {},
        "learned_text": f"C = {model.C_:.4g}, strength = {model.strength_:.4g}, "
        f"bandwidth = {model.bandwidth_:.4g}",
        "learned_errors": {},
        "num_rows": len(machine.coefficients),
    }
