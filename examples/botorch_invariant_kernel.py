"""
An invariant kernel in a BoTorch model
======================================

`FunctionalKernel` makes the kernel of the invariant function an ordinary GPyTorch kernel. So a BoTorch model
takes it as `covar_module`, and everything else stays as it is: fitting, acquisition functions, optimisation.
The function below depends on three settings in any order.

It needs BoTorch (`pip install botorch`), and does nothing without it.
"""

import importlib.util

import matplotlib.pyplot as plt
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.functionals import OrbitAverage
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import FunctionalKernel
from orbitwise.transforms import coordinate_permutations

has_botorch = importlib.util.find_spec("botorch") is not None


def experiment(x):
    """The same for all orders of the three settings."""
    return torch.sin(6 * x).sum(-1, keepdim=True) + x.prod(-1, keepdim=True)


orders = FiniteOrbit(coordinate_permutations(3))
kernels = {
    "plain": ScaleKernel(RBFKernel()),
    "invariant": ScaleKernel(FunctionalKernel(RBFKernel(), OrbitAverage(orders), normalize=True)),
}

# %%
# Two models of the same measurements
# -----------------------------------

generator = torch.Generator().manual_seed(0)
x = torch.rand(12, 3, generator=generator, dtype=torch.float64)
new = torch.rand(500, 3, generator=generator, dtype=torch.float64)

errors = {}
if has_botorch:
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained", sharex=True, sharey=True)
    for axis, (name, kernel) in zip(axes, kernels.items(), strict=True):
        model = SingleTaskGP(x, experiment(x), torch.full_like(x[:, :1], 1e-4), covar_module=kernel)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        with torch.no_grad():
            mean = model.posterior(new).mean
        errors[name] = (mean - experiment(new)).square().mean().sqrt().item()
        print(f"{name:10s} error on new settings {errors[name]:.2f}")
        axis.plot(experiment(new), mean, ".", markersize=3)
        axis.axline((0, 0), slope=1, color="grey", linestyle=":")
        axis.set(title=f"{name} kernel", xlabel="measured", ylabel="predicted")
else:
    print("BoTorch is not installed")

# %%
# Twelve measurements tell what 72 tell a model that does not know the symmetry.

assert not has_botorch or errors["invariant"] < 0.7 * errors["plain"]
plt.show()
