"""Recipes of kernel machines and of losses, and what estimators on a machine remember of their fit.

A machine is a sum over its rows, so it includes the inputs of its training rows, labelled or not.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

import numpy as np
import torch

from orbitwise.functionals.atoms import Atoms, Gradients
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.risk.machines import Machine, basis_rows
from orbitwise.losses import EpsilonInsensitive, Hinge, Logistic, Squared, SquaredHinge
from orbitwise.process.process import Process
from orbitwise.storage.posteriors import NUMBERS
from orbitwise.storage.recipes import RECORD, SMALLEST, Field, Recipe, is_plain_numbers, require, table_of

NUMBER = Field((int, float), least=0)
POSITIVE = Field((int, float), least=SMALLEST)
ARRAY = Field(np.ndarray, is_record=True)
FITTED = {
    "C_": NUMBER,
    "_image_shape": Field((tuple, list, NoneType), each=int, least=1),
    "bandwidth_": POSITIVE,
    "gap_": ARRAY,
    "machine_": Field(Machine),
    "n_features_in_": Field(int, least=1),
    "n_iter_": ARRAY,
    "objective_": ARRAY,
    "strength_": NUMBER,
}
CLASSIFIER = {**FITTED, "classes_": ARRAY, "scale_": NUMBER}
OPTIONAL = {
    "_input_shape": Field((tuple, list), each=int, least=1),
    "channels_": Field((str, NoneType)),
    "cv_error_": RECORD,
    "evidence_kind_": Field(str),
    "feature_names_in_": ARRAY,
    "log_evidence_": RECORD,
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
            "coefficients": NUMBERS,
            "beta": NUMBERS,
            "basis": Field(str),
        },
        check=_check_machine,
    ),
)


def check_machine_of(model: Any) -> None:
    """Raise a ValueError where an estimator's machine is one of other inputs or classes."""
    machine, classes = model.machine_, getattr(model, "classes_", None)
    require(machine.rows[0].points.shape[-1] == model.n_features_in_, "a machine of other inputs")
    outputs = machine.coefficients.shape[1]
    if classes is not None:
        require(outputs == (1 if len(classes) == 2 else len(classes)), "a machine of other classes")
    require(outputs > 0 and (outputs == 1 or not getattr(model, "_is_vector", False)), "other outputs")
    for each in ("gap_", "n_iter_", "objective_"):
        array = getattr(model, each)
        require(array.dtype.kind in "iuf" and array.ndim <= 1, f"{each} that are no numbers")
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(2, model.n_features_in_, generator=generator, dtype=torch.float64)
    values = machine.values(Evaluation(), probes)
    require(is_plain_numbers(values), "a machine whose values are not finite")


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
