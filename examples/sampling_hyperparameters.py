"""
Sampling hyperparameters when noise is not Gaussian
===================================================

Counts y ~ Poisson(exp f(x)) of a function f that is the same at x and -x. The evidence has no closed form,
so values f and hyperparameters θ are sampled together (Lecture 2.9). Gibbs sampling takes them in turn, and
hardly moves: a given f tells its own lengthscale far better than the counts do. The better scheme proposes
θ from an approximation of p(θ | y), lets f follow θ, and corrects the approximation exactly.

`python examples/sampling_hyperparameters.py --out DIR` writes `sampling_hyperparameters.png` and `.json`.
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from rich.console import Console
from torch import Tensor

from orbitwise.functionals import Evaluation, Functional, OrbitAverage
from orbitwise.inference.sampling import HierarchicalModel, LatentChains, gibbs, independence_sampler
from orbitwise.likelihoods import Poisson
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms import negation

parser = argparse.ArgumentParser(description="Gibbs sampling against an approximation as the source.")
parser.add_argument("--out", type=Path, default=Path("build/sampling_hyperparameters"))
parser.add_argument("--num-samples", type=int, default=250, help="samples of each of two chains")
options = parser.parse_known_args()[0]
out, num_samples = options.out, options.num_samples
out.mkdir(parents=True, exist_ok=True)

NUM_CHAINS, NAMES = 2, ("log amplitude²", "log lengthscale")
burn_in, num_draws = num_samples // 5, min(50, num_samples)


# %%
# Data: most counts on one side
# -----------------------------
# The rate is even in x, but three counts of four were taken at positive x.


def log_rate(x: Tensor) -> Tensor:
    return 1.2 + 1.1 * torch.cos(2.2 * x) - 0.12 * x.square()


generator = torch.Generator().manual_seed(4)
x = torch.cat([torch.linspace(0.1, 3.0, 24), torch.linspace(-3.0, -0.1, 8)]).double()[:, None]
y = torch.poisson(log_rate(x).exp(), generator=generator)
grid = torch.linspace(-3.2, 3.2, 161, dtype=torch.float64)[:, None]
x_new = 6 * torch.rand(400, 1, generator=generator, dtype=torch.float64) - 3
y_new = torch.poisson(log_rate(x_new).exp(), generator=generator)

# %%
# The model
# ---------
# `build` returns process, rows and likelihood for θ; hyperpriors of the logarithms are normal, with
# deviations 1.5 and 0.5. Without the orbit it is an ordinary Gaussian process.


def model_of(functional: Functional) -> HierarchicalModel:
    rows, likelihood = functional.atoms(x), Poisson()
    kernel = ScaleKernel(RBFKernel()).double()
    process = Process(None, kernel)

    def build(theta: Tensor):
        kernel.outputscale, kernel.base_kernel.lengthscale = theta.exp()
        return process, rows, likelihood

    width = torch.tensor([1.5, 0.5], dtype=torch.float64)
    return HierarchicalModel(build, y, lambda theta: -0.5 * (theta / width).square().sum(), NAMES)


even = OrbitAverage(FiniteOrbit(negation(1)))
model, start = model_of(even), torch.zeros(2, dtype=torch.float64)

# %%
# Three samplers of the same posterior
# ------------------------------------
# Two chains each, as many samples each. `effective_sample_size` says what they are worth, `problems` whether
# they may be trusted at all.

samplers = {
    "gibbs": lambda: gibbs(
        model, start, num_samples, num_chains=NUM_CHAINS, burn_in=burn_in, width=0.5, generator=generator
    ),
    "gibbs_whitened": lambda: gibbs(
        model,
        start,
        num_samples,
        num_chains=NUM_CHAINS,
        burn_in=burn_in,
        width=0.5,
        whiten=True,
        generator=generator,
    ),
    "approximation": lambda: independence_sampler(
        model, start, num_samples, num_chains=NUM_CHAINS, num_draws=num_draws, generator=generator
    ),
}
runs: dict[str, LatentChains] = {}
record: dict[str, dict] = {}
for name, sampler in samplers.items():
    began = time.perf_counter()
    runs[name] = found = sampler()
    seconds, chains = time.perf_counter() - began, found.parameters
    size = chains.effective_sample_size.min().item()
    record[name] = {
        "effective_samples": size,
        "samples": len(chains.pooled),
        "r_hat": chains.r_hat.max().item(),
        "factorisations": chains.num_factorisations,
        "likelihoods": chains.num_evaluations,
        "effective_per_1000_factorisations": 1000 * size / chains.num_factorisations,
        "effective_per_1000_likelihoods": 1000 * size / chains.num_evaluations,
        "seconds": seconds,
        "effective_per_second": size / seconds,
        "acceptance": found.acceptance,
        "mean": chains.mean.tolist(),
        "deviation": chains.deviation.tolist(),
        "problems": chains.problems(),
    }
    Console(width=110).print(chains.summary(name))
    print(f"{seconds:.1f} s, {chains.num_factorisations:,} factorisations. {' '.join(chains.problems())}\n")

# %%
# Predictions average over samples of θ and f
# -------------------------------------------
# With the orbit, counts at x inform about -x. The table has log densities of 400 new counts, in nats per
# count.

NUM_PARTS = min(100, num_samples)
posteriors = {"even": runs["approximation"].posterior(model, NUM_PARTS)}
plain_model = model_of(Evaluation())
plain = independence_sampler(
    plain_model, start, num_samples // 2, num_chains=NUM_CHAINS, num_draws=num_draws, generator=generator
)
posteriors["plain"] = plain.posterior(plain_model, NUM_PARTS)
curves = {}
for name, functional in (("even", even), ("plain", Evaluation())):
    moments = posteriors[name].moments(functional, grid)
    rate = posteriors[name].predict(functional, grid)[:, 0]
    density = posteriors[name].log_predictive_density(functional, x_new, y_new)
    curves[name] = (rate, moments.mean[:, 0], moments.variance[:, 0].sqrt())
    record[f"prediction_{name}"] = {
        "log_density": density.mean().item(),
        "error_of_log_rate": (moments.mean - log_rate(grid)).square().mean().sqrt().item(),
    }
    print(f"{name:5s}: log density of a new count {density.mean().item():.3f}")
# the grid is its own mirror image
for name, (rate, _, _) in curves.items():
    record[f"prediction_{name}"]["asymmetry"] = (rate - rate.flip(0)).abs().max().item()

# %%
# Picture and numbers
# -------------------

INK, FAINT, GIBBS, WHITE, BETTER = "#22303a", "#c9d0d5", "#d55e00", "#b58900", "#0072b2"
plt.rcParams.update(
    {
        "font.size": 11,
        "axes.titlesize": 12.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)
styles = {
    "gibbs": ("Gibbs: $f$ held while θ moves", GIBBS),
    "gibbs_whitened": ("Gibbs: noise held", WHITE),
    "approximation": ("Approximation as the source", BETTER),
}
figure = plt.figure(figsize=(15.5, 5.4), layout="constrained")
places = figure.add_gridspec(3, 3, width_ratios=(1.15, 0.85, 1.1))
lengths = torch.cat([run.parameters.samples[..., 1].flatten() for run in runs.values()])
low, high = lengths.min().item() - 0.1, lengths.max().item() + 0.1
for row, (name, (title, colour)) in enumerate(styles.items()):
    axis, samples = figure.add_subplot(places[row, 0]), runs[name].parameters.samples
    for chain, alpha in zip(samples, (1.0, 0.5), strict=True):
        axis.plot(chain[:, 1], color=colour, linewidth=0.9, alpha=alpha)
    worth = record[name]["effective_samples"]
    axis.set_title(f"{title}: {samples[..., 0].numel():,} samples, worth {worth:,.0f}", fontsize=11.5)
    axis.set(xlim=(0, num_samples), ylim=(low, high))
    if row == 1:
        axis.set_ylabel("log lengthscale, two chains")
    if row == 2:
        axis.set_xlabel("sample")
    else:
        axis.tick_params(labelbottom=False)
axis = figure.add_subplot(places[:, 1])
cloud, path = runs["approximation"].parameters.pooled, runs["gibbs"].parameters.samples
axis.plot(cloud[:, 1], cloud[:, 0], "o", color=BETTER, markersize=3.2, markeredgewidth=0, alpha=0.45)
axis.plot([], [], "o", color=BETTER, label="approximation as the source")
for number, chain in enumerate(path):
    axis.plot(
        chain[:, 1],
        chain[:, 0],
        color=GIBBS,
        linewidth=0.9,
        marker="o",
        markersize=2.2,
        markeredgewidth=0,
        label=None if number else "path of Gibbs",
    )
axis.set(xlabel="log lengthscale", ylabel="log amplitude²")
axis.set_title("The same posterior, twice")
axis.legend(frameon=False, loc="upper left", fontsize=10)
axis = figure.add_subplot(places[:, 2])
points = grid[:, 0]
rate, mean, deviation = curves["even"]
axis.fill_between(
    points,
    (mean - 1.645 * deviation).exp(),
    (mean + 1.645 * deviation).exp(),
    color=BETTER,
    alpha=0.18,
    linewidth=0,
    label="90 %",
)
axis.plot(points, curves["plain"][0], color="#8b979f", linewidth=1.6, label="no invariance")
axis.plot(points, rate, color=BETTER, linewidth=2.4, label="even $f$")
axis.plot(points, log_rate(points).exp(), color=INK, linewidth=1.1, linestyle=(0, (4, 3)), label="true rate")
axis.plot(x[:, 0], y[:, 0], "o", color=INK, markersize=4.5, markeredgewidth=0, alpha=0.75, label="counts")
axis.set(xlim=(-3.2, 3.2), ylim=(-0.4, 1.15 * y.max().item()), xlabel="$x$", ylabel="count")
gain = record["prediction_even"]["log_density"] - record["prediction_plain"]["log_density"]
axis.set_title(f"Averaged over samples: evenness is worth\n{400 * gain:.0f} nats on 400 new counts")
axis.legend(frameon=False, fontsize=10, loc="upper right")
figure.savefig(out / "sampling_hyperparameters.png", dpi=140)
text = json.dumps({"num_samples": num_samples, "num_chains": NUM_CHAINS, **record}, indent=1)
(out / "sampling_hyperparameters.json").write_text(text + "\n", encoding="utf-8")
print(f"wrote {out / 'sampling_hyperparameters.png'} and {out / 'sampling_hyperparameters.json'}")

# %%
assert gain > 0, "evenness should help to predict new counts"
