"""Where an estimator computes: on a GPU, where there is one and the problem is large enough to gain."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from orbitwise.estimators.learned_ranges import freeze_at
from orbitwise.functionals.functional import Functional

WORTH_A_GPU = 1e9
"""Rows × nodes × inducing points × columns of an evaluation from which a GPU gains.

They take a tenth of a second or so of one core, and a GPU some milliseconds however little there is to do.
"""
USUAL_NODES, USUAL_INDUCING = 16, 1000
"""What counts where the numbers of nodes and inducing points are found by the fit itself."""


def chosen_device(device: object, work: float, num_gpus: int | None = None) -> str:
    """The device that is meant: a name stands for itself, and "auto" for the GPU if the work is worth it.

    `work` counts rows × nodes × inducing points × columns. `num_gpus` are those there are, by default those
    that torch finds. Raises a ValueError for a device that is not there.
    """
    gpus = torch.cuda.device_count() if num_gpus is None else num_gpus
    name = str(device)
    if name == "auto":
        return "cuda" if gpus and work >= WORTH_A_GPU else "cpu"
    found = re.fullmatch(r"cpu|cuda(?::(\d{1,3}))?", name)
    instead = "take device='auto' (the GPU if there is one, else the CPU) or device='cpu'"
    if found is None:
        why = " Apple's GPUs have no double precision." if name.startswith("mps") else ""
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:1', not {device!r}.{why}")
    if name != "cpu" and not gpus:
        raise ValueError(f"device={name!r}, but torch finds no CUDA GPU here: {instead}.")
    if found[1] is not None and int(found[1]) >= gpus:
        raise ValueError(f"device={name!r}, but there are only {gpus} GPUs, from 'cuda:0' on: {instead}.")
    return name


def work_of(functional: Functional, x: Tensor, num_nodes: int | None, num_inducing: int | None) -> float:
    """Rows × nodes × inducing points × columns of an evaluation.

    Exact inference has all nodes of all rows for inducing points, and `num_inducing` is None. `num_nodes` is
    None where they are found by the fit.
    """
    with torch.no_grad():
        frozen = freeze_at(functional, USUAL_NODES if num_nodes is None else num_nodes)
        nodes, columns = frozen.atoms(x[:1]).points.shape[-2:]
    points = float(len(x)) * nodes
    return points * (points if num_inducing is None else num_inducing) * columns
