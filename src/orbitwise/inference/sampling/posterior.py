"""Posteriors represented by samples: g given y under any likelihood (Lecture 2.9).

p(f* | y) ≈ (1/J) Σ_j p(f* | f_j) with f_j ~ p(f | y): given a sample of f, g is Gaussian, so every functional
has a mean and a variance, and predictions average over the samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Functional
from orbitwise.inference.exact import check_rows
from orbitwise.inference.linear_algebra import cholesky, gaussian_draws, solve_lower, standard_normal
from orbitwise.inference.model import Posterior
from orbitwise.inference.sampling.chains import Chains
from orbitwise.inference.sampling.elliptical import Source, alternate, by_group
from orbitwise.inference.sampling.proposal import approximate
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.likelihoods.softmax import normal_nodes
from orbitwise.process.process import Moments, Process, Rows

NUM_NODES = 32
LARGEST_CHUNK = 2**22
"""The most numbers held in memory when responses are averaged over samples."""


@torch.no_grad()
def sample_posterior(
    process: Process,
    rows: Rows,
    targets: Float[Tensor, "n c"],
    likelihood: Likelihood,
    num_samples: int = 1000,
    *,
    num_chains: int = 4,
    burn_in: int = 100,
    thin: int = 1,
    source: Literal["both", "approximation", "prior"] = "both",
    generator: torch.Generator | None = None,
) -> SampledPosterior:
    """g given targets under any likelihood, by elliptical slice sampling of f = L g at the rows.

    Ellipses are drawn from the `source`: the prior, a variational Gaussian whose error the likelihood then
    corrects, or both in turn. All are exact. The approximation is faster by orders of magnitude if the data
    are informative, but slow in the tails that the data do not determine, where the prior is better. Chains
    start at draws of the approximation. `.chains.warn_if_unmixed()` checks whether they were long enough.
    """
    check_rows(rows, targets)
    if source not in ("both", "approximation", "prior"):
        raise ValueError(f"source must be 'both', 'approximation' or 'prior', not {source!r}.")
    covariance, offset = process.covariance(rows), process.mean(rows)
    q = approximate(covariance, offset, targets, likelihood)
    start = q.values(standard_normal((num_chains, *targets.shape), covariance, generator))[0]

    def prior_density(f: Tensor) -> Tensor:
        return by_group(likelihood.log_density(f, targets).sum(-2), likelihood)

    def corrected_density(f: Tensor) -> Tensor:
        return by_group(q.log_correction(likelihood, f, targets), likelihood)

    sources = {
        "approximation": Source(corrected_density, q.factor(), q.moments.mean),
        "prior": Source(prior_density, q.lower, offset[:, None].expand_as(targets)),
    }
    used = list(sources.values()) if source == "both" else [sources[source]]
    drawn = alternate(used, start, num_samples, burn_in, thin, generator)
    return SampledPosterior(process, rows, drawn.samples, likelihood, drawn.num_evaluations)


@final
class SampledPosterior(Posterior):
    """g given y under any likelihood, by samples of f at the rows: p(g | y) ≈ mean of p(g | f_j).

    `samples` are t samples of each of k chains, for which v = L⁻¹(f - m) is stored, with L the Cholesky
    factor of the rows' covariance. Moments and draws are those of the mixture over samples; `chains` shows
    whether they mixed.
    """

    def __init__(
        self,
        process: Process,
        rows: Rows,
        samples: Float[Tensor, "k t n c"],
        likelihood: Likelihood,
        num_evaluations: int = 0,
    ) -> None:
        self.process = process
        self.rows = rows
        self.samples = samples
        self.likelihood = likelihood
        self.num_evaluations = num_evaluations
        with torch.no_grad():
            self.lower, self.jitter = cholesky(process.covariance(rows))
            # v = L⁻¹(f - m) of every sample, [n, q·c]
            centred = samples.flatten(0, 1) - process.mean(rows)[:, None]
            self._white = solve_lower(self.lower, centred.permute(1, 0, 2).flatten(1))

    @property
    def chains(self) -> Chains:
        """The samples of f as chains, with diagnostics of how well they mixed."""
        outputs = self.samples.shape[-1]
        names = [
            f"f[{n}]" if outputs == 1 else f"f[{n}, {c}]"
            for n in range(self.samples.shape[2])
            for c in range(outputs)
        ]
        return Chains(self.samples.flatten(2), tuple(names), self.num_evaluations)

    @torch.no_grad()
    def row_moments(self, rows: Rows) -> Moments:
        """Moments of rows over all samples: E[f*] and var f* = E var(f* | f) + var E[f* | f]."""
        means, variance = self.conditional(rows)
        mean = means.mean(0)
        total = variance[:, None] + (means - mean).square().mean(0)
        return Moments(mean, total, mean.square() + total)

    @torch.no_grad()
    def conditional(self, rows: Rows) -> tuple[Float[Tensor, "q n c"], Float[Tensor, " n"]]:
        """The mean of rows given each sample of f, and their variance, which is the same for all samples."""
        # A = L⁻¹K*,  m* + Aᵀv,  k** - |A|²
        cross = solve_lower(self.lower, self.process.covariance(self.rows, rows))
        white = cross.mT @ self._white
        means = white.unflatten(1, (-1, self.samples.shape[-1])).permute(1, 0, 2)
        variance = (self.process.variance(rows) - cross.square().sum(0)).clamp_min(0)
        return self.process.mean(rows)[:, None] + means, variance

    def predict(
        self, functional: Functional, x: Tensor, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c"]:
        """The mean of y at x, or probabilities, through the likelihood and averaged over samples."""
        means, variance = self.conditional(functional.atoms(x, generator))
        total = torch.zeros_like(means[0])
        for part in means.split(self._chunk(means[0])):
            # the rows of all samples in one list
            mean, spread = part.flatten(0, 1), variance.repeat(len(part))
            each = self.likelihood.predict(Moments(mean, spread, mean.square() + spread[:, None]))
            total += each.unflatten(0, part.shape[:2]).sum(0)
        return total / len(means)

    @torch.no_grad()
    def log_predictive_density(
        self,
        functional: Functional,
        x: Tensor,
        targets: Float[Tensor, "n c"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " n"]:
        """log p(y* | y) of new targets: the density of y*, averaged over f* and the samples of f."""
        means, variance = self.conditional(functional.atoms(x, generator))
        nodes = normal_nodes(NUM_NODES, targets.shape[1], 0).to(means)
        spread = variance.sqrt()[:, None] * nodes[:, None, :]
        parts = []
        for part in means.split(self._chunk(means[0])):
            values = part[:, None] + spread
            density = self.likelihood.log_density(values.flatten(0, 1), targets).sum(-1)
            parts.append(torch.logsumexp(density, dim=0))
        return torch.logsumexp(torch.stack(parts), dim=0) - math.log(len(means) * len(nodes))

    @torch.no_grad()
    def covariance(self, rows: Rows) -> Float[Tensor, "c n n"]:
        """The joint covariance of rows over all samples: E cov(f* | f) + cov E[f* | f], for each output."""
        means, _ = self.conditional(rows)
        centred = (means - means.mean(0)).permute(2, 1, 0)
        return self._given(rows) + centred @ centred.mT / len(means)

    def _given(self, rows: Rows) -> Float[Tensor, "n n"]:
        """The covariance of rows given f at the training rows, which is the same for all samples."""
        cross = solve_lower(self.lower, self.process.covariance(self.rows, rows))
        return self.process.covariance(rows) - cross.mT @ cross

    @torch.no_grad()
    def sample(
        self, rows: Rows, num_samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c q"]:
        """Joint posterior draws of rows: a random sample of f, and a draw given this sample."""
        means, _ = self.conditional(rows)
        covariance = self._given(rows)
        place = means.device if generator is None else generator.device
        picked = torch.randint(len(means), (num_samples,), generator=generator, device=place)
        chosen = means[picked.to(means.device)].permute(1, 2, 0)
        draws = [gaussian_draws(each, covariance, num_samples, generator) for each in chosen.unbind(1)]
        return torch.stack(draws, dim=1)

    def _chunk(self, like: Tensor) -> int:
        return max(1, LARGEST_CHUNK // (NUM_NODES * like.numel()))


@final
class MixturePosterior(Posterior):
    """A mixture of posteriors with equal weights, such as for samples of hyperparameters.

    Its mean is the mean of the parts' means, and its variance the mean of their variances plus the variance
    of their means. It has no `process`, because every part has its own.
    """

    def __init__(self, parts: Sequence[Posterior]) -> None:
        if not parts:
            raise ValueError("A mixture needs at least one posterior.")
        self.parts = list(parts)

    @torch.no_grad()
    def moments(self, functional: Functional, x: Tensor, generator: torch.Generator | None = None) -> Moments:
        return self._mixed([part.moments(functional, x, generator) for part in self.parts])

    @torch.no_grad()
    def row_moments(self, rows: Rows) -> Moments:
        return self._mixed([part.row_moments(rows) for part in self.parts])

    @torch.no_grad()
    def covariance(self, rows: Rows) -> Float[Tensor, "c n n"]:
        """The mean of the parts' covariances, and the covariance of their means."""
        means = torch.stack([part.row_mean(rows) for part in self.parts])
        centred = (means - means.mean(0)).permute(2, 1, 0)
        inner = [part.covariance(rows).expand(len(centred), -1, -1) for part in self.parts]
        return torch.stack(inner).mean(0) + centred @ centred.mT / len(self.parts)

    @torch.no_grad()
    def sample(
        self, rows: Rows, num_samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c q"]:
        """Joint draws of rows, each from a random part."""
        place = None if generator is None else generator.device
        picked = torch.randint(len(self.parts), (num_samples,), generator=generator, device=place).cpu()
        drawn = [
            part.sample(rows, int((picked == i).sum()), generator)
            for i, part in enumerate(self.parts)
            if bool((picked == i).any())
        ]
        # draws of one part are adjacent: restore the order in which parts were chosen
        order = picked.argsort(stable=True).argsort()
        together = torch.cat(drawn, dim=-1)
        return together[..., order.to(together.device)]

    def _mixed(self, each: list[Moments]) -> Moments:
        """E[f*] and E[f*²] are means over the parts, so their disagreement is part of the variance."""
        mean = torch.stack([moments.mean for moments in each]).mean(0)
        square = torch.stack([moments.mean_square for moments in each]).mean(0)
        inner = [m.variance if m.variance.dim() == 2 else m.variance[:, None] for m in each]
        outer = torch.stack([(moments.mean - mean).square() for moments in each]).mean(0)
        return Moments(mean, torch.stack([v.expand_as(mean) for v in inner]).mean(0) + outer, square)

    def predict(
        self, functional: Functional, x: Tensor, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c"]:
        """The mean of y at x, or probabilities, if every part is a sampled posterior."""
        found = [part.predict(functional, x, generator) for part in self._sampled()]
        return torch.stack(found).mean(0)

    def log_predictive_density(
        self,
        functional: Functional,
        x: Tensor,
        targets: Float[Tensor, "n c"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " n"]:
        """log p(y* | y) of new targets, if every part is a sampled posterior."""
        found = [part.log_predictive_density(functional, x, targets, generator) for part in self._sampled()]
        return torch.logsumexp(torch.stack(found), dim=0) - math.log(len(found))

    def _sampled(self) -> list[SampledPosterior]:
        sampled = [part for part in self.parts if isinstance(part, SampledPosterior)]
        if len(sampled) < len(self.parts):
            raise ValueError(
                "Only sampled posteriors have a likelihood: call `moments`, and pass the result to `predict` "
                "of "
                "the likelihood."
            )
        return sampled
