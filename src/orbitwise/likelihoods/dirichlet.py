"""The Dirichlet likelihood of Milios et al. 2018: labels as Gaussian observations of log-concentrations.

A label of class k makes α_k = 1 + α_ε and α_j = α_ε for the others; the logarithm of a Gamma variable is
approximated by a Gaussian with variance s² = log(1 + 1/α) and mean log α - s²/2. Probabilities follow from
regression on these targets and a softmax of samples.

A softmax is invariant to a common shift, so the targets of each row are centred at 0, the mean of f. A label
that counts as w labels has the variance s²/w.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from orbitwise.declarations import POSITIVE, Field, Stored
from orbitwise.likelihoods.gaussian import gaussian_log_density, gaussian_quadratic
from orbitwise.likelihoods.label_count import LabelCount
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic, Targets, Values, column_variance
from orbitwise.process.process import Moments


@final
class Dirichlet(Likelihood):
    """Targets are one-hot labels [n, c]; each becomes a Gaussian observation with its own variance.

    Parameters
    ----------
    alpha : float, default=0.01
        α_ε, the concentration of a class without a label.
    count : float, default=1.0
        How many labels one label counts as. If it is `learnable`, learning starts there.
    learnable : bool, default=False
        Whether `count` is learned by the evidence.
    """

    stored = Stored(
        {
            "alpha": POSITIVE,
            "count": Field(least=POSITIVE.least, read="label_count.start"),
            "learnable": Field(read="label_count.is_learned", is_omitted=False),
        }
    )

    def __init__(self, alpha: float = 0.01, count: float = 1.0, learnable: bool = False) -> None:
        super().__init__()
        if not alpha > 0:
            raise ValueError(f"alpha must be positive, not {alpha!r}.")
        self.alpha, self.label_count = alpha, LabelCount(count, learnable)

    def check_parts(self) -> None:
        """Raise a ValueError where the count is out of range."""
        self.label_count.check_parts()

    def observations(self, targets: Targets) -> tuple[Targets, Targets]:
        """The Gaussian targets and their noise variances."""
        concentration = targets + self.alpha
        noise = torch.log1p(concentration.reciprocal())
        observed = concentration.log() - 0.5 * noise
        centred = observed - observed.mean(-1, keepdim=True)
        return centred, noise / self.label_count.value(noise)

    def log_density(self, f: Values, targets: Targets) -> Values:
        observed, noise = self.observations(targets)
        return gaussian_log_density(observed - f, noise)

    def predict(self, moments: Moments) -> Targets:
        """The probabilities of the classes, E[softmax f], by fixed draws."""
        fixed = torch.Generator(moments.mean.device).manual_seed(0)
        return softmax_mean(moments.mean, column_variance(moments), fixed)

    def encode_labels(self, labels: Int[Tensor, " n"], num_classes: int) -> Targets:
        return one_hot(labels, num_classes)

    def expansion(self, moments: Moments | None, targets: Targets, tilt: Targets | None = None) -> Quadratic:
        return gaussian_quadratic(*self.observations(targets))


def one_hot(labels: Int[Tensor, " n"], num_classes: int) -> Targets:
    """1 for the class of each row, 0 for the others."""
    return torch.nn.functional.one_hot(labels, num_classes).double()


def softmax_mean(
    mean: Targets,
    variance: Targets,
    generator: torch.Generator,
    num_samples: int = 256,
) -> Targets:
    """E[softmax(f)] for Gaussian f with independent outputs, by sampling."""
    shape, place = (num_samples, *mean.shape), generator.device
    noise = torch.randn(shape, generator=generator, device=place, dtype=mean.dtype)
    return torch.softmax(mean + variance.sqrt() * noise.to(mean.device), dim=-1).mean(0)
