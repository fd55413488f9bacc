"""Small fitted models of every public estimator, saved: what the fuzzer of model files starts from."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gpytorch.kernels import (
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.priors import GammaPrior

from orbitwise import (
    AutoGPRegressor,
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    LaplacianSVC,
    MoleculeGP,
    SparseGPRegressor,
    VirtualSVC,
    save,
)
from orbitwise.functionals import Gradient, OrbitSum
from orbitwise.kernels import BasisKernel, FourierBasis, WideConvolutionKernel, WideNetworkKernel
from orbitwise.orbits import (
    ComposedOrbit,
    FiniteOrbit,
    ImageOrbit,
    JitterOrbit,
    PatchOrbit,
    PointCloudOrbit,
    SampledOrbit,
    SignalOrbit,
    WeightedOrbit,
)
from orbitwise.transforms import Rotation, coordinate_permutations, negation

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(12, 2))
Y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * RANDOM.normal(size=12)
TWO = (X[:, 0] > 0).astype(int)
LABELS = np.array(["cat", "dog", "owl"])[np.arange(12) % 3]
IMAGES = RANDOM.normal(size=(12, 4, 4))
WATER = np.array([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]]) + 0.05 * RANDOM.normal(size=(3, 3, 3))
QUICK: dict[str, Any] = {
    "max_iterations": 2, "num_steps": 3, "num_inducing": 5, "batch_size": 6, "num_nodes": 2,
    "random_state": 0,
}  # fmt: skip
SLOPES = [(Gradient(), X[:3], np.ones((3, 2)), None), (Gradient([0]), X[:2], np.zeros((2, 1)), 0.2)]
COMPOSED = ComposedOrbit(FiniteOrbit(negation(2)), SampledOrbit(Rotation(2), -1.0, 1.0), num_samples=4)
KERNELS = (
    ScaleKernel(PeriodicKernel() * RBFKernel(lengthscale_prior=GammaPrior(2.0, 1.0)))
    + RQKernel()
    + PolynomialKernel(power=2)
    + BasisKernel(FourierBasis(2))
    + SpectralMixtureKernel(num_mixtures=2, ard_num_dims=2)
)
SEARCH: dict[str, Any] = {"max_depth": 0, "base_kernels": ["matern52"], "num_restarts": 1}

MODELS: dict[str, Callable[[], Any]] = {
    "exact": lambda: InvariantGPRegressor(invariance="permutation", **QUICK).fit(X, Y),
    "slopes": lambda: InvariantGPRegressor(mean="linear", noise=0.03, **QUICK).fit(X, Y, None, SLOPES),
    "sum": lambda: InvariantGPRegressor(
        ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)) + WideNetworkKernel(depth=2),
        OrbitSum(FiniteOrbit(coordinate_permutations(2))),
        **QUICK,
    ).fit(X, Y),
    "collapsed": lambda: InvariantGPRegressor(
        invariance=JitterOrbit(2, 0.2), inference="collapsed", **QUICK
    ).fit(X.astype(np.float32), np.stack([Y, X[:, 0]], 1).astype(np.float32)),
    "variational": lambda: InvariantGPRegressor(invariance=COMPOSED, inference="variational", **QUICK).fit(
        X, Y
    ),
    "subsampled": lambda: InvariantGPRegressor(
        invariance=FiniteOrbit(coordinate_permutations(2), num_samples=2), inference="variational", **QUICK
    ).fit(X, Y),
    "kernels": lambda: InvariantGPRegressor(KERNELS, noise=0.1, **QUICK).fit(X, Y),
    "signals": lambda: InvariantGPRegressor(
        invariance=SignalOrbit(16, shift=1.0, warp=0.4, jitter=0.1), inference="collapsed", **QUICK
    ).fit(IMAGES.reshape(12, 16), Y),
    "clouds": lambda: InvariantGPRegressor(
        invariance=PointCloudOrbit(8, 2, angle=0.4, shift=0.1, jitter=0.05), **QUICK
    ).fit(IMAGES.reshape(12, 16), Y),
    "digits": lambda: InvariantGPClassifier(invariance="affine+deformation", **QUICK).fit(IMAGES, LABELS),
    "collapsed digits": lambda: InvariantGPClassifier(
        invariance="flip+quarter_turn", inference="collapsed", likelihood="dirichlet", **QUICK
    ).fit(IMAGES, LABELS),
    "variational digits": lambda: InvariantGPClassifier(
        invariance="rotation", inference="variational", likelihood="stick_breaking", **QUICK
    ).fit(IMAGES, LABELS),
    "patches": lambda: InvariantGPClassifier(
        invariance=WeightedOrbit(PatchOrbit((4, 4), (2, 2))), image_shape=(4, 4), **QUICK
    ).fit(IMAGES, LABELS),
    "convolution": lambda: InvariantGPClassifier(
        WideConvolutionKernel((4, 4), depth=1), image_shape=(4, 4), noise="leave_one_out", **QUICK
    ).fit(IMAGES, TWO),
    "sparse": lambda: SparseGPRegressor(
        RBFKernel(), "permutation", num_inducing=5, max_iterations=2, random_state=0
    ).fit(X, Y),
    "iterative": lambda: SparseGPRegressor(
        bound="cg", num_inducing=5, max_iterations=2, random_state=0
    ).fit(X, Y),
    "machine": lambda: InvariantSVC(invariance="local_average").fit(X, LABELS),
    "tangents": lambda: InvariantSVC(invariance="tangent", C=1.0).fit(IMAGES, TWO),
    "graph": lambda: LaplacianSVC(num_neighbours=3).fit(X, TWO),
    "ridge": lambda: InvariantKernelRidge().fit(X, Y),
    "support vectors": lambda: VirtualSVC(
        ImageOrbit((4, 4), {"angle": 0.3}), num_copies=2, random_state=0, image_shape=(4, 4)
    ).fit(IMAGES, LABELS),
    "molecule": lambda: MoleculeGP([8, 1, 1], max_iterations=2).fit(WATER, WATER[:, 0, 0], WATER),
    "search": lambda: AutoGPRegressor(
        invariances=["mirror[0]"], random_state=0, verbose=False, **SEARCH
    ).fit(X[:, :1], np.cos(X[:, 0])),
}  # fmt: skip


@cache
def saved_model(name: str) -> bytes:
    """The file of a model."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fits of so few steps do not converge
        path = Path(folder) / "model.orbitwise"
        save(MODELS[name](), path)
        return path.read_bytes()
