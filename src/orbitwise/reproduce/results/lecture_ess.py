"""Lecture 2.9: elliptical slice sampling, and why hyperparameters should not be sampled by Gibbs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from matplotlib.figure import Figure
from torch import Tensor

from orbitwise.functionals.functional import Evaluation
from orbitwise.inference import exact
from orbitwise.inference.linear_algebra import cholesky
from orbitwise.inference.sampling import HierarchicalModel, LatentChains, gibbs, independence_sampler
from orbitwise.inference.sampling.elliptical import elliptical_slice
from orbitwise.likelihoods import Poisson
from orbitwise.process.process import Process
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.tables import mean_of
from orbitwise.reproduce.talk_demo import process_of

NOISE = 0.3
SAMPLERS = {
    "gibbs": "Gibbs: f held while θ moves",
    "whitened": "Gibbs: the noise behind f held",
    "approximation": "an approximation as the source",
}


def log_rate(x: Tensor) -> Tensor:
    """The logarithm of the expected counts."""
    return 1.2 + 1.1 * torch.cos(2.2 * x) - 0.12 * x.square()


def run_values(num_rows: int, num_samples: int, seed: int, device: str) -> Numbers:
    """Samples of p(f | y) under Gaussian noise, where it is known, judged by their standard errors."""
    generator = torch.Generator().manual_seed(seed)
    process, rows = process_of(0.8), Evaluation().atoms(torch.linspace(-3, 3, num_rows).double()[:, None])
    lower = cholesky(process.covariance(rows).detach()).lower
    noise = torch.randn(num_rows, 1, generator=generator, dtype=torch.float64)
    y = lower @ torch.randn(num_rows, 1, generator=generator, dtype=torch.float64) + NOISE * noise

    def likelihood(f: Tensor) -> Tensor:
        return -0.5 * ((y - f) / NOISE).square().sum((-1, -2))

    found = elliptical_slice(likelihood, lower, num_samples, generator=generator)
    variances = torch.full((num_rows,), NOISE**2, dtype=torch.float64)
    truth = exact.condition(process, rows, y, variances).row_moments(rows)
    # the mean over the samples of a chain is nearly independent of that of another chain
    chains = found.samples.reshape(found.samples.shape[0], found.samples.shape[1], num_rows).mean(1)
    error = chains.std(0) / len(chains) ** 0.5
    scores = (chains.mean(0) - truth.mean[:, 0]) / error
    spread = found.samples.reshape(-1, num_rows).std(0) / truth.variance.sqrt()
    return {
        "score": float(scores.square().mean().sqrt()),
        "spread": float(spread.mean()),
        "largest_error": float((chains.mean(0) - truth.mean[:, 0]).abs().max()),
    }


def run_chains(sampler: str, num_samples: int, seed: int, device: str) -> Numbers:
    """Two chains of (f, θ) for counts, and how many independent samples they are worth."""
    generator = torch.Generator().manual_seed(100 + seed)
    x = torch.linspace(-3, 3, 32).double()[:, None]
    y = torch.poisson(log_rate(x).exp(), generator=generator)
    rows, likelihood = Evaluation().atoms(x), Poisson()
    kernel = ScaleKernel(RBFKernel()).double()
    process, width = Process(None, kernel), torch.tensor([1.5, 0.5], dtype=torch.float64)

    def build(theta: Tensor):
        kernel.outputscale, kernel.base_kernel.lengthscale = theta.exp()
        return process, rows, likelihood

    names = ("log amplitude²", "log lengthscale")
    model = HierarchicalModel(build, y, lambda theta: -0.5 * (theta / width).square().sum(), names)
    start = torch.zeros(2, dtype=torch.float64)
    found: LatentChains
    if sampler == "approximation":
        found = independence_sampler(
            model, start, num_samples, num_chains=2, num_draws=min(50, num_samples), generator=generator
        )
    else:
        found = gibbs(
            model, start, num_samples, num_chains=2, burn_in=num_samples // 5, width=0.5,
            whiten=sampler == "whitened", generator=generator,
        )  # fmt: skip
    chains = found.parameters
    return {
        "samples": len(chains.pooled),
        "effective": chains.effective_sample_size.min().item(),
        "factorisations": chains.num_factorisations,
        "per_thousand": 1000 * chains.effective_sample_size.min().item() / chains.num_factorisations,
        "mean": chains.mean.tolist(),
        "path": chains.samples[..., 1].round(decimals=3).tolist(),
    }


def cells(setting: Setting) -> Mapping[str, Cell]:
    """Values alone, and the three samplers of values with hyperparameters."""
    num_rows, values, samples = setting.pick((8, 400, 24), (24, 3000, 200), (40, 20000, 1000))
    found = {}
    for seed in setting.seeds:
        options = {"num_rows": num_rows, "num_samples": values, "seed": seed}
        found[f"values, seed {seed}"] = Cell(run_values, options, 5.0)
        for sampler in SAMPLERS:
            options = {"sampler": sampler, "num_samples": samples, "seed": seed}
            found[f"{sampler}, seed {seed}"] = Cell(run_chains, options, 20.0)
    return found


def claims(numbers: Cells) -> list[Claim]:
    """Section 2.9."""
    worth = {name: mean_of(numbers, name, "effective") for name in SAMPLERS}
    count = mean_of(numbers, "gibbs", "samples")
    cost = {name: mean_of(numbers, name, "per_thousand") for name in SAMPLERS}
    score, spread = mean_of(numbers, "values", "score"), mean_of(numbers, "values", "spread")
    return [
        Claim.of(
            "We can sample from p(f | y) by elliptical slice sampling",
            "a reference",
            f"under Gaussian noise, means are {score:.1f} standard errors from the exact ones in the "
            "mean square, "
            f"deviations {spread:.2f} of the exact ones",
            score < 3 and abs(spread - 1) < 0.15,
        ),
        Claim.of(
            "Gibbs sampling of f and θ does not mix, because they are highly correlated",
            "no number",
            f"{count:.0f} samples are worth {worth['gibbs']:.0f}, with the noise behind f held "
            f"{worth['whitened']:.0f}",
            worth["gibbs"] < 0.2 * count,
            "a short chain cannot tell",
        ),
        Claim.of(
            "A better alternative is an approximation of the distribution as the source of samples",
            "no number",
            f"worth {worth['approximation']:.0f}; per 1,000 factorisations {cost['approximation']:.0f} "
            "against "
            f"{cost['gibbs']:.0f} and {cost['whitened']:.0f}",
            worth["approximation"] > 2 * worth["gibbs"] and cost["approximation"] > 2 * cost["gibbs"],
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """The paths of the lengthscale."""
    figure.set_size_inches(8, 5)
    axes = figure.subplots(len(SAMPLERS), 1, sharex=True, sharey=True)
    for axis, (name, title) in zip(axes, SAMPLERS.items(), strict=True):
        found = numbers[f"{name}, seed 0"]
        for chain in found["path"]:
            axis.plot(np.array(chain), linewidth=0.8)
        axis.set_title(f"{title}: {found['samples']} samples, worth {found['effective']:.0f}", fontsize=10)
    axes[1].set_ylabel("log lengthscale, two chains")
    axes[-1].set_xlabel("sample")


RESULT = Result(
    name="lecture-ess",
    title="Elliptical slice sampling of values, and three samplers of hyperparameters",
    source="Lecture 2.9",
    printed="Words: Gibbs sampling usually does not work, an approximation as the source is better.",
    cells=cells,
    claims=claims,
    draw=draw,
)
