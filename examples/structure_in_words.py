"""
What a series consists of, in words
===================================

`AutoGPRegressor` searches sums and products of kernels, scored by evidence, and tells what it found. The
series below is a line, a yearly cycle and noise; its last two years are forecast.
"""

import matplotlib.pyplot as plt
import numpy as np

from orbitwise import AutoGPRegressor, InvariantGPRegressor

random = np.random.default_rng(0)
years = np.linspace(0, 8, 80)[:, None]
series = years[:, 0] + np.sin(2 * np.pi * years[:, 0]) + 0.2 * random.normal(size=80)
past, future = slice(0, 60), slice(60, None)

model = AutoGPRegressor(max_depth=1, base_kernels=["rbf", "periodic", "linear"], verbose=False)
model.fit(years[past], series[past])
print(model.spelling_)
print(model.summary())

# %%
# The forecast, compared with a plain RBF kernel
# ----------------------------------------------

plain = InvariantGPRegressor().fit(years[past], series[past])
errors = {}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
for axis, (name, each) in zip(axes, {"found": model, "rbf": plain}.items(), strict=True):
    mean, deviation = each.predict(years, return_std=True)
    errors[name] = np.sqrt(np.mean((mean - series)[future] ** 2))
    print(f"{name:6s} error of two years ahead {errors[name]:.2f}")
    axis.fill_between(years[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.25)
    axis.plot(years[:, 0], mean)
    axis.plot(years[past, 0], series[past], "k.", markersize=4)
    axis.plot(years[future, 0], series[future], "r.", markersize=4)
    axis.set(title=name, xlabel="years")

# %%
assert "periodic" in model.spelling_
assert "linear" in model.spelling_
assert errors["found"] < 0.3 < errors["rbf"]
plt.show()
