"""Learning a kernel by the leave-one-out probability of labels, for means of one-hot regression (METHOD 5).

The evidence of one-hot codes takes them for numbers with Gaussian noise. What counts is the probability of
each label, given all others, under the softmax of its held-out means. Its gradient costs one product of
matrices more than that of the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from gpytorch.kernels import ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor, nn

from orbitwise.inference.calibration import cautious_scale, cross_entropy, soft_labels, two_columns
from orbitwise.inference.linear_algebra import cholesky, held_out_means, plus_diagonal, solve_lower
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.training import Training, gained_little, maximize
from orbitwise.likelihoods.gaussian import Gaussian

DEVIATIONS = {"raw_noise": 3.0, "raw_scale": 3.0}
DEVIATION = 1.5
"""Of the weak normal hyperpriors, about their starts, of the logarithms of noise, scale and all else."""
LITTLE = 0.02
"""Nats of all labels that are not worth further iterations."""


@final
class HeldOutLabels(nn.Module):
    """Σ log p(label | all other labels) of exact rows, plus weak hyperpriors about where learning starts.

    The variance of f is held, because held-out means depend on its ratio to the noise only; the scale of the
    softmax is learned instead.
    """

    soft: Tensor

    def __init__(self, model: LatentModel, observations: Observations, labels: Int[Tensor, " n"]) -> None:
        super().__init__()
        self.model = model
        self.observations = observations
        self.labels = labels
        self.soft = soft_labels(labels, max(2, observations.targets.shape[1]))
        with torch.no_grad():
            scale = cautious_scale(two_columns(self.means()), labels)
        self.raw_scale = nn.Parameter(observations.targets.new_tensor(math.log(scale)))
        self.starts = [parameter.detach().clone() for parameter in self.learned.values()]

    @property
    def learned(self) -> dict[str, nn.Parameter]:
        """The parameters that matter, by name."""
        named = {**dict(self.model.named_parameters()), "raw_scale": self.raw_scale}
        return {
            name: each
            for name, each in named.items()
            if each.requires_grad and not name.endswith("raw_outputscale")
        }

    def covariance(self) -> Float[Tensor, "n n"]:
        """K + σ²I."""
        block = self.observations.through(self.model.functional).atoms()
        return plus_diagonal(self.model.process.covariance(block), self.model.noise)

    def means(self) -> Float[Tensor, "n c"]:
        """The codes of every label, predicted from all others."""
        return held_out_means(self.covariance(), self.observations.targets)

    def log_probability(self) -> Float[Tensor, ""]:
        """Σ log p(label | all other labels), where one in so many labels may be wrong."""
        scores = self.raw_scale.exp() * two_columns(self.means())
        return -torch.nn.functional.cross_entropy(scores, self.soft, reduction="sum")

    def forward(self) -> Float[Tensor, ""]:
        """What is maximised."""
        total = self.log_probability()
        for (name, parameter), start in zip(self.learned.items(), self.starts, strict=True):
            deviation = DEVIATIONS.get(name.rpartition(".")[2], DEVIATION)
            total = total - 0.5 * ((parameter - start) / deviation).square().sum()
        return total

    def learn(self, max_iterations: int, callback: Callable[[int, float], None] | None = None) -> Training:
        """Raise it by L-BFGS over all that is learned, and then set the variance of f."""
        training = maximize(
            self, list(self.learned.values()), max_iterations, callback=callback, stop=_is_enough
        )
        self._set_variance()
        return training

    @torch.no_grad()
    def _set_variance(self) -> None:
        """The variance of f with the most evidence at the present ratio to the noise."""
        kernel, likelihood = self.model.process.kernel, self.model.likelihood
        if not isinstance(kernel, ScaleKernel) or not isinstance(likelihood, Gaussian):
            return
        targets = self.observations.targets
        # s = yᵀ(K+σ²I)⁻¹y / nc maximises N(y; 0, s(K+σ²I))
        white = solve_lower(cholesky(self.covariance()).lower, targets)
        size = float(white.square().mean())
        noise = self.model.noise.item() * size
        kernel.outputscale = kernel.outputscale * size
        likelihood.raw_noise.fill_(math.log(max(noise - likelihood.floor, likelihood.floor)))

    @torch.no_grad()
    def loss(self) -> float:
        """The mean log loss of held-out labels, at the scale of the softmax that suits them."""
        scores = two_columns(self.means())
        return cross_entropy(scores, self.labels, cautious_scale(scores, self.labels))


def _is_enough(history: list[float]) -> bool:
    return gained_little(history, LITTLE)
