"""
Occam's hill and Occam's asymptote
==================================

Which order of a polynomial do the data support? With the same prior variance for every coefficient, p(a)
= N(0, σ²I), the evidence rises and falls again: Occam's hill (Lecture 1.5, figure 6). It is tempting to
read that big models overfit. They do not; the prior is at fault. With p(a_i) = N(0, γ⁻ⁱ), γ learned by
the evidence, higher orders matter less and less, and the evidence stays where it is as the order grows:
Occam's asymptote (figure 7). Then one may take as large a model as one likes.

A polynomial with normal coefficients is a Gaussian process with the kernel φ(x)ᵀΣφ(x′), so its evidence
is exact.

`python examples/occam_polynomials.py --out DIR` writes `occam_polynomials.png` and
`occam_polynomials.json`.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from orbitwise import InvariantGPRegressor
from orbitwise.kernels import BasisKernel, PolynomialBasis
from orbitwise.selection import model_posterior

parser = argparse.ArgumentParser(description="The evidence of polynomials of different orders.")
parser.add_argument(
    "--out", type=Path, default=Path("build/occam_polynomials"), help="folder for the results"
)
parser.add_argument("--largest", type=int, default=20, help="the highest order")
options = parser.parse_known_args()[0]
out, largest = options.out, options.largest
out.mkdir(parents=True, exist_ok=True)

NUM_DATA, NOISE, RANGE = 40, 0.2, 1.5
rng = np.random.default_rng(0)


# %%
# Data from e⁻ˣ − 1.5
# -------------------
# No polynomial is right, but low orders come close: its coefficients fall quickly. (Where they do not, as
# those of sin 3x, this prior fits less well and its evidence falls at high orders too. An asymptote is a
# property of prior and data.)


def truth(x: np.ndarray) -> np.ndarray:
    return np.exp(-x) - 1.5


x = np.linspace(-RANGE, RANGE, NUM_DATA)[:, None]
y = truth(x[:, 0]) + NOISE * rng.normal(size=NUM_DATA)
grid = np.linspace(-1.9, 1.9, 191)[:, None]


# %%
# Orders 0 to 20 under both priors
# --------------------------------
# σ² or γ, one number each, and the noise are integrated out as well (Laplace's method), so that what is
# compared is p(y | order).


def polynomial(order: int, prior: str) -> InvariantGPRegressor:
    if prior == "isotropic":
        kernel = BasisKernel(PolynomialBasis(order))
    else:
        kernel = BasisKernel(PolynomialBasis(order), "geometric")
        kernel.raw_variance.requires_grad_(False)  # a₀ ~ N(0, 1)
    return InvariantGPRegressor(kernel, normalize_y=False)


posteriors = {
    prior: model_posterior({str(k): polynomial(k, prior) for k in range(largest + 1)}, x, y)
    for prior in ("isotropic", "geometric")
}
evidence, probability, fitted = {}, {}, {}
for prior, posterior in posteriors.items():
    models = {int(model.name): model for model in posterior.models}
    evidence[prior] = [models[k].log_evidence for k in range(largest + 1)]
    probability[prior] = [models[k].probability for k in range(largest + 1)]
    fitted[prior] = {k: models[k].estimator for k in range(largest + 1)}
    best = int(np.argmax(evidence[prior]))
    drop = evidence[prior][best] - evidence[prior][-1]
    late = evidence[prior][largest // 2] - evidence[prior][-1]
    print(
        f"{prior:9s}: most evidence at order {best}, {drop:.1f} nats less at order {largest}, of which "
        f"{late:.1f} are lost after order {largest // 2}"
    )
learned = {
    "variance": [fitted["isotropic"][k].kernel_.variance.item() for k in range(largest + 1)],
    "ratio": [fitted["geometric"][k].kernel_.ratio.item() for k in range(largest + 1)],
}
print(f"γ learned at order {largest}: {learned['ratio'][-1]:.2f}; σ² there: {learned['variance'][-1]:.3g}")

# %%
# Averages over all orders
# ------------------------
# Nobody has to choose: predictions averaged over orders, weighted by p(order | y).

average = {
    prior: posterior.predict(grid, return_std=True, include_noise=False)
    for prior, posterior in posteriors.items()
}
inside = np.abs(grid[:, 0]) <= RANGE
errors = {
    prior: {
        **{
            str(k): float(np.sqrt(np.mean((fitted[prior][k].predict(grid) - truth(grid[:, 0]))[inside] ** 2)))
            for k in (3, largest)
        },
        "average": float(np.sqrt(np.mean((average[prior][0] - truth(grid[:, 0]))[inside] ** 2))),
    }
    for prior in posteriors
}
print(f"root mean square error on [-{RANGE}, {RANGE}]:", json.dumps(errors))

# %%
# Picture and numbers
# -------------------

INK, FAINT, HILL, ASYMPTOTE = "#22303a", "#c9d0d5", "#d55e00", "#0072b2"
plt.rcParams.update(
    {
        "font.size": 11,
        "axes.titlesize": 12,
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
NAMES = {"isotropic": "$p(a_i) = N(0, \\sigma^2)$", "geometric": "$p(a_i) = N(0, \\gamma^{-i})$"}
TITLES = {"isotropic": "Occam's hill", "geometric": "Occam's asymptote"}
COLOURS = {"isotropic": HILL, "geometric": ASYMPTOTE}
figure, axes = plt.subplots(2, 3, figsize=(15, 8.2), layout="constrained", width_ratios=(1.1, 1, 1))
orders = np.arange(largest + 1)
top = max(max(values) for values in evidence.values())
for row, prior in enumerate(posteriors):
    colour = COLOURS[prior]
    axis = axes[row, 0]
    other = "geometric" if prior == "isotropic" else "isotropic"
    axis.plot(orders, evidence[other], color=FAINT, linewidth=1.6, zorder=0)
    axis.plot(orders, evidence[prior], "o-", color=colour, linewidth=2.2, markersize=6)
    axis.set(
        xlabel="order of the polynomial",
        ylabel="log evidence",
        ylim=(top - 64, top + 4),
        xticks=orders[:: max(1, largest // 5)],
    )
    axis.set_title(f"{TITLES[prior]}:  {NAMES[prior]}")
    bars = axis.inset_axes((0.25, 0.08, 0.5, 0.34))
    bars.bar(orders, probability[prior], color=colour, width=0.8)
    bars.set(xticks=orders[:: max(1, largest // 5)], yticks=[], ylim=(0, None))
    bars.tick_params(labelsize=8.5)
    bars.set_title("p(order | y)", fontsize=9.5, fontweight="normal", pad=2)
    bars.spines["left"].set_visible(False)
    axis = axes[row, 1]
    generator = torch.Generator().manual_seed(2)
    model = fitted[prior][largest]
    with torch.no_grad():
        # f = Σ_i a_i xⁱ with the learned σ² or γ
        features = model.kernel_.scaled_features(torch.from_numpy(grid))
    draws = features @ torch.randn(features.shape[1], 5, generator=generator, dtype=torch.float64)
    for k, values in enumerate(draws.T):
        axis.plot(grid[:, 0], values, color=colour, linewidth=1.6, alpha=1 - 0.15 * k)
    axis.set(xlim=(-1.9, 1.9), xticks=[-1, 0, 1], xlabel="$x$", ylabel="$f$ drawn from the prior")
    if prior == "isotropic":
        axis.set_yscale("symlog", linthresh=10, linscale=1.2)
        axis.set_ylim(-1e4, 1e4)
    else:
        axis.set_ylim(-8, 8)
    axis.set_title(f"The prior at order {largest}" + (" (note the scale)" if prior == "isotropic" else ""))
    axis = axes[row, 2]
    mean, deviation = fitted[prior][largest].predict(grid, return_std=True, include_noise=False)
    axis.fill_between(
        grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, color=colour, alpha=0.18, linewidth=0
    )
    axis.plot(grid[:, 0], mean, color=colour, linewidth=2.2, label=f"order {largest}, ± 2 deviations")
    axis.plot(grid[:, 0], average[prior][0], color=INK, linewidth=1.5, label="average over orders")
    axis.plot(grid[:, 0], truth(grid[:, 0]), color=INK, linewidth=1.1, linestyle=(0, (4, 3)), label="truth")
    axis.plot(x[:, 0], y, "o", color="#8b979f", markersize=4.5, markeredgewidth=0, label="data")
    axis.set(xlim=(-1.9, 1.9), xticks=[-1, 0, 1], ylim=(-3, 6), xlabel="$x$", ylabel="$f$")
    axis.set_title(f"The posterior at order {largest}")
    if row == 0:
        axis.legend(frameon=False, fontsize=9.5, loc="upper right")
figure.savefig(out / "occam_polynomials.png", dpi=130)
record = {"num_data": NUM_DATA, "noise": NOISE, "evidence": evidence, "probability": probability}
record |= {"learned": learned, "errors": errors}
(out / "occam_polynomials.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
print(f"wrote {out / 'occam_polynomials.png'} and {out / 'occam_polynomials.json'}")

# %%
# With the isotropic prior evidence falls beyond its hill; with the other it levels off.

for prior in probability:
    assert errors[prior]["average"] < 0.1
