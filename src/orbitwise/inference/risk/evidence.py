"""The evidence of labels given the invariances, for choosing λ, ν and the kernel without cross-validation.

Squared losses are Gaussian observations, including those of L_i f = 0, so the machine is a GP. Invariances
are folded into the kernel K̃ first, which makes the evidence the conditional log p(y | Lf = 0) = log p(y, 0)
- log p(0); the joint one grows without bound with ν (METHOD 8). The unpenalised basis is integrated out under
a flat prior, which gives the restricted likelihood: the density of contrasts of the targets that do not
depend on the basis.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import log_determinant
from orbitwise.inference.risk.problem import CurvedRows


@final
class SquaredEvidence:
    """log p(contrasts of y | λ) for y = f + Bβ + noise, f ~ N(0, s²K̃), noise variance s²/(2λw).

    One eigendecomposition of K̃ for the contrasts serves every λ. Unless it is given, the scale s² is optimal
    for each λ; it changes neither predictions nor the meaning of λ and ν. Several outputs share everything
    but s².
    """

    def __init__(
        self,
        gram: Float[Tensor, "n n"],
        targets: Float[Tensor, "n c"],
        basis: Float[Tensor, "n b"],
        weights: Float[Tensor, " n"],
    ) -> None:
        count, width = basis.shape
        if count <= width:
            raise ValueError(
                f"{count} targets are too few for {width} unpenalised basis functions: there must be more "
                "targets."
            )
        root = weights.sqrt()
        full = (
            torch.linalg.qr(root[:, None] * basis, mode="complete").Q if width else torch.eye(count).to(gram)
        )
        self.contrasts = full[:, width:]
        matrix = self.contrasts.mT @ (root[:, None] * gram * root) @ self.contrasts
        spread, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
        self.spread = spread.clamp_min(0)
        self.squares = (vectors.mT @ (self.contrasts.mT @ (root[:, None] * targets))).square()
        self.jacobian = float(weights.log().sum()) / 2

    def best_scale(self, rates: Float[Tensor, " r"]) -> Float[Tensor, "r c"]:
        """The s² with the greatest evidence, for every λ and output."""
        variances = self.spread + 0.5 / rates[:, None]
        least = torch.finfo(variances.dtype).tiny
        return ((1 / variances) @ self.squares / len(self.spread)).clamp_min(least)

    def __call__(self, rates: Float[Tensor, " r"], scale: float | None = None) -> Float[Tensor, " r"]:
        """The log evidence for every λ, summed over outputs."""
        variances = self.spread + 0.5 / rates[:, None]
        scales = self.best_scale(rates) if scale is None else torch.full_like(self.best_scale(rates), scale)
        fit = (1 / variances) @ self.squares / scales
        count = len(self.spread)
        spread = variances.log().sum(-1)[:, None] + count * (2 * math.pi * scales).log()
        return (-0.5 * (fit + spread) + self.jacobian).sum(-1)


NODES = 64
DAMPING = 0.7
SETTLED = 1e-6
"""The change of the log evidence, in nats, at which sites have settled."""
MOST_ROUNDS = 100


@torch.no_grad()
def logistic_evidence(
    gram: Float[Tensor, "*#batch n n"],
    labels: Float[Tensor, "*#batch n"],
    basis: Float[Tensor, "n b"],
    rates: Float[Tensor, "*#batch n"],
) -> Float[Tensor, "*batch"]:
    """log p(y | λ) for logistic labels by expectation propagation, for a batch of kernels and λ at once.

    The machine with λ times the logistic loss is the mode of a GP with the kernel λK̃ and the likelihood
    σ(yf), whose invariances are observed with noise λ/(2ν). `rates` are λ times the weights of rows; their
    mean is taken as λ, and a weight of two is two labels. Here the basis has the prior variance of f, because
    under a flat prior the evidence of separable classes would grow with λ without limit.

    Laplace's approximation, whose Gaussian sits at the mode, is too small by 5 to 20 nats where λ is large,
    and so prefers machines that hardly look at the labels (Nickisch and Rasmussen 2008).
    """
    spread = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * (basis @ basis.mT)
    gram = gram + spread / basis.square().mean().clamp_min(1e-300) if basis.shape[-1] else gram
    rate = rates.mean(-1)
    gram, powers = rate[..., None, None] * gram, rates / rate[..., None]
    gram, labels, powers = torch.broadcast_tensors(gram, labels[..., None], powers[..., None])
    labels, powers = labels[..., 0], powers[..., 0]
    precision, shift = torch.zeros_like(powers), torch.zeros_like(powers)
    found = torch.full_like(powers[..., 0], -torch.inf)
    for _ in range(MOST_ROUNDS):
        # the Gaussian of all sites, Σ = K - K√τ(I + √τK√τ)⁻¹√τK
        curved = CurvedRows(gram, precision)
        explained = gram @ curved.inner(gram)
        variance = (gram - explained).diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(gram.dtype).tiny)
        pulled = (gram @ shift[..., None])[..., 0]
        mean = pulled - (gram @ curved.inner(pulled[..., None]))[..., 0]
        # without each site in turn
        left = (1 / variance - precision).clamp_min(torch.finfo(gram.dtype).tiny)
        aside = (mean / variance - shift) / left
        log_mass, centre, width = tilted_moments(aside, 1 / left, labels, powers)
        before, found = found, log_mass.sum(-1) - 0.5 * log_determinant(curved.lower)
        found = found + 0.5 * (torch.log1p(precision / left) + shift * mean).sum(-1)
        apart = precision * aside.square() - 2 * shift * aside
        found = found + 0.5 * ((left * apart - shift.square()) / (precision + left)).sum(-1)
        if bool(((found - before).abs() < SETTLED).all()):
            break
        wanted = (1 / width - left).clamp_min(0)
        precision = precision + DAMPING * (wanted - precision)
        shift = shift + DAMPING * (centre / width - aside * left - shift)
    return found


def tilted_moments(
    mean: Float[Tensor, "*batch n"],
    variance: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    powers: Float[Tensor, "*batch n"],
) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch n"], Float[Tensor, "*batch n"]]:
    """The log mass, mean and variance of σ(yf)^w N(f; m, v), by the trapezoidal rule in asinh(f).

    Nodes are dense near 0, where σ bends, and reach eight deviations around m.
    """
    deviation = variance.sqrt()
    ends = torch.stack([mean - 8 * deviation, mean + 8 * deviation], -1).asinh()
    places = torch.linspace(0, 1, NODES, dtype=mean.dtype, device=mean.device)
    places = ends[..., :1] + (ends[..., 1:] - ends[..., :1]) * places
    f = places.sinh()
    away = (f - mean[..., None]) / deviation[..., None]
    density = -0.5 * away.square() - 0.5 * math.log(2 * math.pi) - deviation.log()[..., None]
    likelihood = powers[..., None] * torch.nn.functional.logsigmoid(labels[..., None] * f)
    # df = cosh(t) dt
    step = ((ends[..., 1] - ends[..., 0]) / (NODES - 1)).log()
    log_weights = density + likelihood + places.cosh().log() + step[..., None]
    log_mass = log_weights.logsumexp(-1)
    shares = (log_weights - log_mass[..., None]).exp()
    centre = (shares * away).sum(-1)
    width = (shares * (away - centre[..., None]).square()).sum(-1)
    return log_mass, mean + deviation * centre, variance * width.clamp(1e-12, 1.0)
