"""
Counts
======

Numbers of accidents, photons or calls are whole and never negative, and scatter more where they are large.
Their likelihood is Poisson, with a rate exp f that a Gaussian process learns. Gaussian noise would be as wide
where almost nothing happens as where much does.
"""

import matplotlib.pyplot as plt
import numpy as np

from orbitwise import InvariantGPRegressor


def rate_at(hour):
    """Calls per quarter of an hour over a day: two rushes."""
    return 0.3 + 9 * np.exp(-0.5 * ((hour - 9) / 1.5) ** 2) + 6 * np.exp(-0.5 * ((hour - 17) / 2) ** 2)


random = np.random.default_rng(0)
hour = np.arange(0, 24, 0.25)[:, None]
rate = rate_at(hour[:, 0])
calls = random.poisson(rate)

# %%
# Two likelihoods
# ---------------
# `predict` gives the rate; `predict_quantiles` gives intervals of new counts.

models = {name: InvariantGPRegressor(likelihood=name).fit(hour, calls) for name in ("poisson", "gaussian")}
again = random.poisson(rate, size=(200, len(rate)))  # the same day, 200 times
held = {}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
for axis, (name, model) in zip(axes, models.items(), strict=True):
    low, high = model.predict_quantiles(hour, [0.05, 0.95]).T
    inside = (again >= np.floor(low)) & (again <= np.ceil(high))
    held[name] = 100 * inside.mean()
    print(f"{name:9s} lowest end of an interval {low.min():5.1f}, new counts inside {held[name]:.0f} %")
    axis.fill_between(hour[:, 0], low, high, alpha=0.25, label="90 %")
    axis.plot(hour[:, 0], model.predict(hour), label="predicted rate")
    axis.plot(hour[:, 0], rate, "k:", label="true rate")
    axis.plot(hour[:, 0], calls, "k.", markersize=3)
    axis.set(title=name, xlabel="hour")
axes[0].legend(frameon=False)

# %%
# Gaussian intervals reach below zero.

low = {name: model.predict_quantiles(hour, [0.05]).min() for name, model in models.items()}
assert low["poisson"] >= 0 > low["gaussian"]
error = {name: np.abs(model.predict(hour) - rate).mean() for name, model in models.items()}
print(f"mean error of the rate: {error['poisson']:.2f} (Poisson), {error['gaussian']:.2f} (Gaussian)")
assert error["poisson"] < error["gaussian"]
plt.show()
