"""Which likelihood the argument `likelihood` of an estimator means: a name, or an instance of any class.

A likelihood of one's own needs no entry here: its instance is taken as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.calibration import two_columns
from orbitwise.likelihoods.bernoulli import Bernoulli
from orbitwise.likelihoods.dirichlet import Dirichlet
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.laplace import Laplace
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.likelihoods.poisson import Poisson
from orbitwise.likelihoods.softmax import Softmax
from orbitwise.likelihoods.student import StudentT
from orbitwise.process.process import Moments

LabelCoding = Literal["one_hot", "stick_breaking", "dirichlet", "softmax"]
NoiseName = Literal["gaussian", "laplace", "poisson", "student_t"]
ONE_HOT_NOISE = 0.01


def regression_likelihood(given: str | Likelihood) -> Likelihood:
    """The likelihood of targets that are numbers, not shared with the caller."""
    named = {"gaussian": Gaussian, "laplace": Laplace, "poisson": Poisson, "student_t": StudentT}
    return _resolve(given, named)


def class_likelihood(given: str | Likelihood, num_classes: int) -> Likelihood:
    """The likelihood of labels, whose `encode_labels` makes targets of them; not shared with the caller."""
    named: dict[str, Callable[[], Likelihood]] = {
        "one_hot": partial(Gaussian, ONE_HOT_NOISE),
        "stick_breaking": Bernoulli,
        "dirichlet": Dirichlet,
        "softmax": partial(Softmax, num_classes, max(256, 4 * num_classes)),
    }
    return _resolve(given, named)


def class_probabilities(
    likelihood: Likelihood, mean: Float[Tensor, "n c"], variance: Float[Tensor, "n c"], scale: float
) -> Float[Tensor, "n k"]:
    """Class probabilities from the posterior moments of f.

    Gaussian noise on codes is no model of labels: there they are a softmax of `scale` times the means.
    """
    if isinstance(likelihood, Gaussian):
        return torch.softmax(scale * two_columns(mean), dim=1)
    return likelihood.class_probabilities(Moments(mean, variance, mean.square() + variance))


def _resolve(given: str | Likelihood, named: Mapping[str, Callable[[], Likelihood]]) -> Likelihood:
    if isinstance(given, Likelihood):
        return copy.deepcopy(given).double()
    if not isinstance(given, str) or given not in named:
        names = ", ".join(map(repr, named))
        raise ValueError(f"likelihood must be one of {names}, or a Likelihood, not {given!r}.")
    return named[given]()
