"""
Mauna Loa: what four components knew of the next twenty years
=============================================================

The lecture (section 2.8) adds four kernels to describe the CO2 above Mauna Loa: a long trend, a season that
changes slowly, irregularities of some years, and correlated noise. Trained on monthly means to the end of
2003, it says what should have come. Twenty years have been measured since: the trend bent upwards, and the
lecture's kernel, whose trend returns to the mean, did not see it coming.

The years that train cannot tell most long trends apart: seven of eight lie within two nats of evidence. So
none is chosen. Trends are averaged by their evidence, hyperparameters are integrated out, and the band is
honest about what was not known.

`python examples/mauna_loa.py --out DIR` writes `mauna_loa.png` and `mauna_loa.json`. It reads
`results/mauna_loa.json`, which `python -m orbitwise.experiments.mauna_loa` made in some minutes, and takes
a minute; without that file, or with `--every`, it fits two trends afresh, hyperparameters at their best.
The data set is `co2_mauna_loa.npz` in the folder that ORBITWISE_DATA names.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import softmax

from orbitwise.experiments.mauna_loa import (
    LECTURE,
    OTHERS,
    TRENDS,
    averaged,
    decompose,
    fit,
    growth,
    judge,
    load,
    rebuilt,
    seasonal,
)
from orbitwise.selection.model_posterior import PredictiveMixture

parser = argparse.ArgumentParser(description="Four components of CO2, twenty years ahead.")
parser.add_argument("--out", type=Path, default=Path("build/mauna_loa"), help="folder for the results")
parser.add_argument(
    "--record", type=Path, default=Path("results/mauna_loa.json"), help="what the experiment wrote"
)
parser.add_argument("--every", type=int, default=1, help="fit afresh to every so many months")
parser.add_argument("--iterations", type=int, default=100, help="of the optimiser, if there is no record")
options = parser.parse_known_args()[0]
options.out.mkdir(parents=True, exist_ok=True)
END = 2004

# %%
# Four components
# ---------------
# Each has an amplitude (a variance, in ppm²) and lengthscales (in years) of its own; noise that is
# independent from month to month is learned beside them. These are the starts:

series = load(END, options.every)
for name, spelling in {"trend": TRENDS[LECTURE], **OTHERS}.items():
    print(f"{name:16s} {spelling}")

# %%
# The lecture's kernel, and an average
# ------------------------------------
# `PredictiveMixture` weighs models; one model alone is a mixture of one.

earlier = None
if options.every == 1 and options.record.exists():
    splits = json.loads(options.record.read_text(encoding="utf-8"))
    found, earlier = splits[str(END)], splits.get(str(END - 20))
    probabilities = found["average"]["probabilities"]
    lecture = rebuilt(found["models"][LECTURE]["optimum"]["members"], series)
    average = averaged(found["models"], probabilities, series)
    evidence = {name: each["marginalised"]["log_evidence"] for name, each in found["models"].items()}
else:
    models = {name: fit(name, series, max_iterations=options.iterations) for name in (LECTURE, "quadratic")}
    evidence = {name: model.log_evidence_ for name, model in models.items()}
    probabilities = dict(zip(models, softmax(list(evidence.values())).tolist(), strict=True))
    lecture = PredictiveMixture([models[LECTURE]], np.ones(1))
    average = PredictiveMixture(list(models.values()), np.array(list(probabilities.values())))
for name in sorted(evidence, key=lambda each: -evidence[each]):
    print(f"{name:16s} log evidence {evidence[name]:8.2f}, probability {100 * probabilities[name]:5.1f} %")

# %%
# What was measured since
# -----------------------

record = {
    "training_months": len(series.x_train),
    "log_evidence": evidence,
    "probabilities": probabilities,
    "lecture": {"scores": judge(lecture, series), "growth": growth(lecture, series)},
    "average": {"scores": judge(average, series), "growth": growth(average, series)},
}
for name in ("lecture", "average"):
    rates = record[name]["growth"]
    for horizon, scores in record[name]["scores"].items():
        print(
            f"{name}, {horizon:>2s} years: {100 * scores['coverage']:5.1f} % of months in the 95 % band, "
            f"RMSE {scores['rmse']:.2f} ppm, mean log density {scores['log_density']:.2f}"
        )
    print(
        f"{name}: {rates['predicted_last']:.2f} ppm a year over the last five years, "
        f"measured {rates['measured_last']:.2f}"
    )

# %%
# Why not the quadratic trend alone?
# ----------------------------------
# It predicted these twenty years best. When trained on data until the end of 1983, it had as much evidence,
# but its predictions were far off, because growth slowed for some years around 1992. The average lost a
# little there and gained much here.

if earlier is not None:
    outcomes = {name: earlier["models"][name]["optimum"]["scores"] for name in (LECTURE, "quadratic")}
    outcomes["average"] = earlier["average"]["scores"]
    record["twenty_years_earlier"] = {name: scores["20"] for name, scores in outcomes.items()}
    for name, scores in record["twenty_years_earlier"].items():
        print(
            f"{END - 20} to {END - 1}, {name}: mean log density {scores['log_density']:.2f}, "
            f"RMSE {scores['rmse']:.2f} ppm"
        )

# %%
# Component by component
# ----------------------
# The components of one model: their means add up to its prediction. A constant may belong to any of them, so
# the bands are wide; the season is shown as it differs from the mean of its year, which is a functional too.

grid = np.arange(1958, 2026.5, 1 / 24)[:, None] - series.origin
parts = decompose(lecture.members[0], grid)
total = sum(part.mean[:, 0].numpy() for part in parts.values())
record["largest_difference_of_sum"] = float(np.abs(total - lecture.predict(grid)).max())
record["deviations"] = {name: part.mean.std().item() for name, part in parts.items()}
parts["season"] = decompose(lecture.members[0], grid, seasonal())["season"]
print(f"components add up to the prediction within {record['largest_difference_of_sum']:.1e} ppm")

# %%
# Picture and numbers
# -------------------

INK, FAINT, LECTURE_COLOUR, AVERAGE_COLOUR = "#22303a", "#c9d0d5", "#d55e00", "#0072b2"
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
figure = plt.figure(figsize=(15, 9.4), layout="constrained")
above, below = figure.subfigures(2, 1, height_ratios=(1.35, 1), hspace=0.04)
left, right = above.subplots(1, 2, width_ratios=(1.9, 1))
years_train, years_test = (x[:, 0] + series.origin for x in (series.x_train, series.x_test))
future = np.arange(END, years_test.max(), 1 / 12)[:, None] - series.origin
years = future[:, 0] + series.origin
for predictor, name, colour in (
    (average, "average of trends", AVERAGE_COLOUR),
    (lecture, "the lecture's kernel", LECTURE_COLOUR),
):
    low, high = (predictor.quantile(future, level, include_noise=True) for level in (0.025, 0.975))
    mean = predictor.predict(future)
    left.fill_between(years, low + series.shift, high + series.shift, color=colour, alpha=0.17, linewidth=0)
    left.plot(years, mean + series.shift, color=colour, linewidth=1.5, label=name)
left.plot(years_train, series.y_train + series.shift, color="#8b979f", linewidth=1.2, label="trained on")
left.plot(years_test, series.y_test + series.shift, color=INK, linewidth=1.6, label="measured since")
left.axvline(END, color=INK, linewidth=1, linestyle=(0, (4, 3)))
left.set(xlim=(1988, 2027), ylim=(345, 448), ylabel="CO$_2$ in ppm")
left.set_title("Twenty years ahead, with 95 % bands", pad=24)
density = {name: record[name]["scores"]["20"]["log_density"] for name in ("lecture", "average")}
note = (
    "mean log density 2004–2023:  "
    f"lecture {density['lecture']:.2f},  average {density['average']:.2f}".replace("-", "−")
)
left.text(0, 1.025, note, transform=left.transAxes, fontsize=10.5)
left.legend(frameon=False, loc="upper left")

ahead = series.years_ahead
annual = np.arange(int(ahead.max() + 1e-6))
for predictor, name, colour in (
    (average, "average", AVERAGE_COLOUR),
    (lecture, "lecture", LECTURE_COLOUR),
):
    residual = series.y_test - predictor.predict(series.x_test)
    missed = [residual[(ahead >= year) & (ahead < year + 1)].mean() for year in annual]
    right.plot(END + annual + 0.5, missed, "o-", color=colour, linewidth=1.8, markersize=4.5, label=name)
    rates = record[name]["growth"]
    place = {"lecture": (END + 13, 0.62), "average": (END + 22.8, 0.13)}[name]
    right.text(
        *place,
        f"{name} predicted {rates['predicted_last']:.1f}",
        transform=right.get_xaxis_transform(),
        color=colour,
        fontsize=10.5,
        ha="right",
    )
right.axhline(0, color=INK, linewidth=1, linestyle=(0, (4, 3)))
right.set(xlim=(END, 2027), ylabel="measured − predicted, ppm")
right.set_title("The acceleration that was missed", pad=24)
measured = record["lecture"]["growth"]
note = (
    f"measured growth: {measured['measured_first']:.1f} ppm a year after {END}, "
    f"{measured['measured_last']:.1f} before {END + 20}"
)
right.text(0, 1.025, note, transform=right.transAxes, fontsize=10.5)

titles = {"trend": "Long trend", "season": "Season about its year", "irregularities": "Irregularities"}
spans = {"trend": (1958, 2026), "season": (1998, 2008), "irregularities": (1958, 2012)}
spans["correlated noise"] = (1998, 2008)
for axis, (name, part) in zip(below.subplots(1, 4), parts.items(), strict=True):
    shift = series.shift if name == "trend" else 0.0
    mean, deviation = part.mean[:, 0].numpy() + shift, part.variance.sqrt().numpy()
    shown = grid[:, 0] + series.origin
    axis.fill_between(
        shown, mean - 2 * deviation, mean + 2 * deviation, color=LECTURE_COLOUR, alpha=0.2, linewidth=0
    )
    axis.plot(shown, mean, color=LECTURE_COLOUR, linewidth=1.5)
    axis.axvline(END, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    visible = (shown >= spans[name][0]) & (shown <= spans[name][1])
    low, high = (mean - 2 * deviation)[visible].min(), (mean + 2 * deviation)[visible].max()
    axis.set(xlim=spans[name], ylim=(low - 0.06 * (high - low), high + 0.06 * (high - low)))
    axis.set_title(titles.get(name, "Correlated noise"), pad=8)
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    if name == "trend":
        axis.set_ylabel("ppm, mean ± 2 deviations")
figure.savefig(options.out / "mauna_loa.png", dpi=140)
(options.out / "mauna_loa.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
print(f"wrote {options.out / 'mauna_loa.png'} and {options.out / 'mauna_loa.json'}")

# %%
# The components add up to the prediction, and the lecture's kernel was too sure of itself.

assert record["largest_difference_of_sum"] < 1e-6
assert record["lecture"]["scores"]["20"]["coverage"] < 0.8 < record["average"]["scores"]["20"]["coverage"]
