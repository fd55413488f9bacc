"""
A kernel of your own
====================

Any GPyTorch kernel is a base kernel, also one that you wrote. If it says how it depends on the squared
distance, slopes can be predicted and observed as well. Here: the rational kernel 1/√(1 + q), with q the
squared distance in lengthscales. It falls off slowly, so places far apart still know of each other.
"""

import gpytorch
import matplotlib.pyplot as plt
import numpy as np
import torch

from orbitwise import InvariantGPRegressor
from orbitwise.functionals import Gradient


class SlowlyFalling(gpytorch.kernels.Kernel):
    """κ(q) = (1 + q)^(-1/2), q = |x - x′|²/lengthscale²."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        squared = self.covar_dist(
            x1 / self.lengthscale, x2 / self.lengthscale, square_dist=True, diag=diag, **params
        )
        return (1 + squared).rsqrt()

    def radial_profile(self, q, order):
        """κ (order 0), κ′ or κ″ of the squared distance, for slopes."""
        return (1.0, -0.5, 0.75)[order] * (1 + q) ** (-0.5 - order)


# %%
# Fit it like any other
# ---------------------

random = np.random.default_rng(0)
x = np.sort(random.uniform(-4, 4, 40))[:, None]
y = np.arctan(2 * x[:, 0]) + 0.05 * random.normal(size=40)
model = InvariantGPRegressor(gpytorch.kernels.ScaleKernel(SlowlyFalling())).fit(x, y)
print(f"log evidence {model.log_evidence_:.1f}")

# %%
# Slopes of it
# ------------
# The posterior predicts any functional, so also the derivative. It is that of standardised targets: hence
# the factor.

grid = np.linspace(-4, 4, 201)[:, None]
mean, deviation = model.predict(grid, return_std=True, include_noise=False)
slope = model.posterior_.moments(Gradient(), torch.as_tensor(grid)).mean[:, 0].detach().numpy() * y.std()
truth = 2 / (1 + 4 * grid[:, 0] ** 2)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.fill_between(grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.25)
left.plot(grid[:, 0], mean)
left.plot(x[:, 0], y, "k.", markersize=4)
left.set_title("f")
right.plot(grid[:, 0], slope, label="predicted")
right.plot(grid[:, 0], truth, "k:", label="truth")
right.set_title("slope of f")
right.legend(frameon=False)

error = np.sqrt(np.mean((slope - truth)[20:-20] ** 2))
print(f"error of the slope {error:.2f}, the largest slope is 2")
assert error < 0.25
plt.show()
