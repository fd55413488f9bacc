"""
Airline passengers: a spectral mixture goes on, an RBF forgets
==============================================================

The lecture opens with this picture (section 1, figure 1). An RBF kernel knows one lengthscale: to follow
the seasons it must be short, and a short memory returns to the mean as soon as the data end. A spectral
mixture is a sum of waves that fade slowly, so trend and seasons go on. It has many optima: it starts from
the strongest lines of the empirical spectrum, and the number of waves is chosen by the evidence of the
years that train.

`python examples/airline.py --out DIR` writes `airline.png` and `airline.json`;
`python -m orbitwise.experiments.airline` tries more starts, and reports them all.
The data set is `airline_passengers.npz` in the folder that ORBITWISE_DATA names.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from orbitwise.experiments.airline import fit, judge, load
from orbitwise.kernels import parse, spectral_mixture
from orbitwise.kernels.spectrum import detrend, frequency_grid, periodogram, spectral_peaks

parser = argparse.ArgumentParser(description="An RBF kernel beside spectral mixtures.")
parser.add_argument("--out", type=Path, default=Path("build/airline"), help="folder for the results")
parser.add_argument("--mixtures", type=int, nargs="+", default=[4, 6, 8], help="numbers of waves to try")
parser.add_argument("--seeds", type=int, default=1, help="random starts beside that of the spectrum")
parser.add_argument("--iterations", type=int, default=500, help="of the optimiser, from every start")
options = parser.parse_known_args()[0]
options.out.mkdir(parents=True, exist_ok=True)

# %%
# The spectrum of the first two thirds
# ------------------------------------
# We use logarithms, because the seasons grow with the traffic. A trend is subtracted before the search for
# frequencies.

series = load()
x, y = series.x_train, series.y_train
frequencies = frequency_grid(x[:, 0])
power = periodogram(x[:, 0], detrend(x[:, 0], y)[0], frequencies)
peaks = spectral_peaks(x[:, 0], y, 5)
print("strongest lines, cycles a year:", ", ".join(f"{each:.2f}" for each in peaks.frequencies))

# %%
# Both kernels from several starts, chosen by evidence
# ----------------------------------------------------

kernels = {f"rbf, lengthscale {length:g}": parse(f"rbf(lengthscale={length})") for length in (0.3, 3, 10)}
for count in options.mixtures:
    for seed in (None, *range(options.seeds)):
        name = f"sm({count}), {'spectrum' if seed is None else f'seed {seed}'}"
        kernels[name] = spectral_mixture(x, y, count, seed)
models, fits = {}, {}
for name, kernel in kernels.items():
    models[name] = fit(kernel, series, options.iterations)
    fits[name] = {"log_evidence": models[name].log_evidence_, **judge(models[name], series)}
    print(
        f"{name:22s} log evidence {fits[name]['log_evidence']:7.2f}, test RMSE {fits[name]['rmse']:.3f} "
        f"({fits[name]['rmse_passengers']:.0f} thousand passengers)"
    )
best = {
    kind: max((name for name in fits if name.startswith(kind)), key=lambda each: fits[each]["log_evidence"])
    for kind in ("rbf", "sm")
}
ratio = fits[best["sm"]]["rmse"] / fits[best["rbf"]]["rmse"]
print(f"chosen by evidence: {best['rbf']} and {best['sm']}; the RMSE falls to {100 * ratio:.0f} %")

# %%
# Picture and numbers
# -------------------

INK, FAINT, RBF_COLOUR, MIXTURE_COLOUR = "#22303a", "#c9d0d5", "#d55e00", "#0072b2"
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
figure, (left, right) = plt.subplots(1, 2, figsize=(15, 5.4), layout="constrained", width_ratios=(2.1, 1))
first = 1949 + 1 / 24
grid = np.linspace(0, series.x_test[-1, 0], 600)[:, None]
for kind, label, colour in (("rbf", "RBF", RBF_COLOUR), ("sm", "spectral mixture", MIXTURE_COLOUR)):
    mean, deviation = models[best[kind]].predict(grid, return_std=True, include_noise=True)
    years, is_future = first + grid[:, 0], grid[:, 0] > x[-1, 0]
    low, high = np.exp(mean - 1.96 * deviation), np.exp(mean + 1.96 * deviation)
    left.fill_between(
        years[is_future], low[is_future], high[is_future], color=colour, alpha=0.17, linewidth=0
    )
    left.plot(years[is_future], np.exp(mean)[is_future], color=colour, linewidth=2.2, label=label)
other = min((name for name in fits if name.startswith("rbf")), key=lambda each: fits[each]["rmse"])
if other != best["rbf"]:
    evidence = [fits[name]["log_evidence"] for name in (other, best["rbf"])]
    label = "RBF, an optimum of log evidence {:.0f}, not {:.0f}".format(*evidence)
    left.plot(
        years[is_future],
        np.exp(models[other].predict(grid[is_future])),
        color=RBF_COLOUR,
        linewidth=1.3,
        linestyle=(0, (3, 2)),
        label=label,
    )
left.plot(
    first + x[:, 0],
    series.passengers_train,
    "o-",
    color="#8b979f",
    markersize=3,
    linewidth=1,
    label="trained on",
)
left.plot(first + series.x_test[:, 0], series.passengers_test, color=INK, linewidth=1.5, label="what came")
left.axvline(first + x[-1, 0] + 1 / 24, color=INK, linewidth=1, linestyle=(0, (4, 3)))
left.set(xlim=(1949, 1961), ylim=(60, 900), yscale="log", ylabel="thousand passengers a month")
left.set_yticks([100, 200, 400, 800], ["100", "200", "400", "800"])
left.minorticks_off()
left.set_title("The last third, with 95 % bands", pad=24)
note = "    ".join(
    f"{label}: RMSE {fits[best[kind]]['rmse']:.3f} (log), "
    f"{fits[best[kind]]['rmse_passengers']:.0f} thousand passengers"
    for kind, label in (("rbf", "RBF"), ("sm", "spectral mixture"))
)
left.text(0, 1.025, note, transform=left.transAxes, fontsize=10.5)
left.legend(frameon=False, loc="upper left")

right.plot(frequencies, power, color="#8b979f", linewidth=1.3, label="empirical, without trend")
kernel = models[best["sm"]].kernel_
means, scales, weights = (
    getattr(kernel, f"mixture_{each}").detach().numpy().ravel() for each in ("means", "scales", "weights")
)
fine = np.linspace(0, frequencies[-1], 4000)
# components are normal densities of frequency, here as wide as a record of eight years can show them
resolution = 1 / (2 * np.pi * x[-1, 0])
widths = np.hypot(scales, resolution)
is_wave = means > 0.5
density = sum(
    weight * resolution / width * np.exp(-0.5 * ((fine - mean) / width) ** 2)
    for mean, width, weight in zip(means[is_wave], widths[is_wave], weights[is_wave], strict=True)
)
right.plot(
    fine, density / np.max(density) * power.max(), color=MIXTURE_COLOUR, linewidth=2, label="learned waves"
)
right.set(xlim=(0, frequencies[-1]), ylim=(0, None), xlabel="cycles a year", ylabel="share of variance")
right.set_title("Where the waves are", pad=24)
right.text(0, 1.025, f"{len(means)} components, chosen by evidence", transform=right.transAxes, fontsize=10.5)
right.legend(frameon=False)
figure.savefig(options.out / "airline.png", dpi=140)
record = {"fits": fits, "chosen": best, "ratio": ratio, "lines": peaks.frequencies.tolist()}
(options.out / "airline.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
print(f"wrote {options.out / 'airline.png'} and {options.out / 'airline.json'}")

# %%
assert ratio < 0.5, "the mixture that evidence chooses should halve the error"
