"""Random problems of sparse regression, and their exact evidence."""

import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.inference import exact
from orbitwise.inference.model import Observations
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms import coordinate_permutations


def random_problem(seed, count, width=2, outputs=1, invariant=False, weighted=False, mean=False, smooth=True):
    """A process, observations, noise and generator; all of them follow from the seed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=generator, dtype=torch.float64)
    y = torch.randn(count, outputs, generator=generator, dtype=torch.float64) + torch.sin(x.sum(1))[:, None]
    kernel = ScaleKernel(RBFKernel() if smooth else MaternKernel(1.5))
    process = Process(ConstantMean() if mean else None, kernel).double()
    with torch.no_grad():
        kernel.outputscale = float(0.5 + 2 * torch.rand(1, generator=generator))
        kernel.base_kernel.lengthscale = float(0.3 + torch.rand(1, generator=generator))
        if mean:
            process.mean_module.constant.fill_(0.3)
    functional = OrbitAverage(FiniteOrbit(coordinate_permutations(width))) if invariant else Evaluation()
    weight = None
    if weighted:
        weight = 0.5 + 2 * torch.rand(count, generator=generator, dtype=torch.float64)
    noise = (0.01 + torch.rand(1, generator=generator, dtype=torch.float64))[0].requires_grad_()
    return process, Observations(functional, x, y, weight), noise, generator


def exact_evidence(process, rows, noise):
    return exact.evidence(process, rows.atoms(), rows.targets, noise / rows.weights()).value
