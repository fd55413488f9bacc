"""Classes and counts of classes: p(y | f) = multinomial(softmax f), by fixed quasi-random nodes.

Outputs of f are independent under q, and the expectation of log Σ exp f_c has no closed form. The nodes are
scrambled Sobol points made normal, symmetric about zero and with unit covariance, so quadratics are
integrated exactly and the objective is deterministic.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.declarations import OMITTED, Field, Stored
from orbitwise.likelihoods.likelihood import Likelihood, Targets, Values, column_variance
from orbitwise.process.process import Moments


@final
class Softmax(Likelihood):
    """Targets [n, c] are one-hot labels, or counts. Not quadratic in f: exact and frozen rows only.

    Parameters
    ----------
    num_classes : int
        The number of outputs of f.
    num_nodes : int, default=256
        Nodes of expectations, at least 4 per class.
    seed : int, default=0
        The scrambling of the nodes.
    """

    is_quadratic = False
    is_separable = False
    ignores_common_shift = True
    nodes: Tensor

    stored = Stored({"num_nodes": Field(read="num_draws"), "seed": OMITTED})

    def __init__(self, num_classes: int, num_nodes: int = 256, seed: int = 0) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"Softmax needs at least two classes, not {num_classes}.")
        if num_nodes < 4 * num_classes:
            raise ValueError(f"{num_classes} classes need at least {4 * num_classes} nodes, not {num_nodes}.")
        self.num_classes, self.num_draws = num_classes, num_nodes
        self.register_buffer("nodes", normal_nodes(num_nodes, num_classes, seed))

    def log_density(self, f: Values, targets: Targets) -> Values:
        """log p(y | f) of a row in parts, one per output; only their sum has a meaning."""
        self.check_targets(targets)
        return _parts(f, torch.logsumexp(f, dim=-1), targets)

    def expected_log_density(self, mean: Targets, variance: Targets, targets: Targets) -> Targets:
        normaliser = torch.logsumexp(self._values(mean, variance), dim=-1).mean(0)
        return _parts(mean, normaliser, targets)

    def predict(self, moments: Moments) -> Targets:
        """The probabilities of the classes, E[softmax f]."""
        return torch.softmax(self._values(moments.mean, column_variance(moments)), dim=-1).mean(0)

    def encode_labels(self, labels: Int[Tensor, " n"], num_classes: int) -> Targets:
        if num_classes != self.nodes.shape[-1]:
            raise ValueError(f"Softmax was made for {self.nodes.shape[-1]} classes, not {num_classes}.")
        return torch.nn.functional.one_hot(labels, num_classes).double()

    def check_targets(self, targets: Targets) -> None:
        if targets.shape[-1] != self.nodes.shape[-1]:
            raise ValueError(f"Softmax was made for {self.nodes.shape[-1]} classes, not {targets.shape[-1]}.")

    def _values(self, mean: Tensor, variance: Tensor) -> Float[Tensor, "k n c"]:
        return mean + variance.sqrt() * self.nodes.to(mean)[:, None, :]


def _parts(f: Tensor, normaliser: Tensor, targets: Tensor) -> Values:
    total = targets.sum(-1)
    coefficient = torch.lgamma(total + 1) - torch.lgamma(targets + 1).sum(-1)
    # one value per row, divided equally among its outputs
    return targets * f + ((coefficient - total * normaliser) / targets.shape[-1])[..., None]


def normal_nodes(num_nodes: int, width: int, seed: int) -> Float[Tensor, "k c"]:
    """Nodes of the standard normal density with equal weights, in pairs ±ε, with unit covariance."""
    engine = torch.quasirandom.SobolEngine(width, scramble=True, seed=seed)
    uniform = engine.draw(-(-num_nodes // 2), dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
    half = torch.special.ndtri(uniform)
    # E[εεᵀ] = CCᵀ, so C⁻¹ε has unit covariance
    lower = torch.linalg.cholesky(half.mT @ half / len(half))
    half = torch.linalg.solve_triangular(lower, half.mT, upper=False).mT
    return torch.cat([half, -half])
