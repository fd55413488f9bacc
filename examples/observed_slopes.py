"""
Slopes as observations
======================

Forces, velocities and gradients of simulations are slopes of the function that is wanted. They are
observations of the same Gaussian process as values are: `observations=` takes any functional. Five values
alone leave much open; five values with their slopes leave little.
"""

import matplotlib.pyplot as plt
import numpy as np

from orbitwise import InvariantGPRegressor
from orbitwise.functionals import Gradient


def function(x):
    return np.sin(3 * x[:, 0]) + 0.5 * x[:, 0]


random = np.random.default_rng(1)
x = np.linspace(-2, 2, 7)[:, None]
y = function(x) + 0.01 * random.normal(size=7)
slopes = 3 * np.cos(3 * x) + 0.5 + 0.05 * random.normal(size=x.shape)

# %%
# With and without slopes
# -----------------------
# An observation is a functional, its inputs, its targets and its noise variance (None learns it).

models = {
    "values": InvariantGPRegressor(noise=1e-4).fit(x, y),
    "values and slopes": InvariantGPRegressor(noise=1e-4).fit(
        x, y, observations=[(Gradient(), x, slopes, 0.05**2)]
    ),
}
grid = np.linspace(-2, 2, 201)[:, None]
errors = {}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
for axis, (name, model) in zip(axes, models.items(), strict=True):
    mean, deviation = model.predict(grid, return_std=True, include_noise=False)
    errors[name] = np.sqrt(np.mean((mean - function(grid)) ** 2))
    print(f"{name:18s} error {errors[name]:.3f}, mean deviation stated {deviation.mean():.3f}")
    axis.fill_between(grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.25)
    axis.plot(grid[:, 0], mean)
    axis.plot(grid[:, 0], function(grid), "k:")
    axis.plot(x[:, 0], y, "ko", markersize=4)
    axis.set_title(name)

# %%
assert errors["values and slopes"] < errors["values"] / 5
plt.show()
