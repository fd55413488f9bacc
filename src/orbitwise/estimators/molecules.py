"""MoleculeGP: energies and forces of one molecule, whose like atoms may change places."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from gpytorch.kernels import Kernel, RQKernel, ScaleKernel
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from orbitwise.declarations import Field, Stored, require
from orbitwise.estimators.convergence import iterations_of, learning
from orbitwise.estimators.engines import FitSettings, run_engine
from orbitwise.estimators.estimator import ROWS_AT_ONCE, LearnedOrbit, RegressionPredictions
from orbitwise.estimators.invariances import Invariance
from orbitwise.estimators.regression_model import RegressionModel, TargetScale
from orbitwise.estimators.validation import InputForm, answering, check_numbers, check_settings
from orbitwise.functionals.averages import OrbitAverage
from orbitwise.functionals.derivatives import Gradient
from orbitwise.functionals.distances import InverseDistances, permutations_of_pairs
from orbitwise.functionals.features import Features
from orbitwise.functionals.functional import Composition, Evaluation, Functional
from orbitwise.inference.exact import ExactEvidence
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.training import gained_little
from orbitwise.inference.optimise.watching import Phase
from orbitwise.kernels.bases import log_positive
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.molecules import generated_exchanges, like_atom_exchanges
from orbitwise.process.process import Process
from orbitwise.transforms.permutations import SignedPermutations

LEARNED_ROWS = 1_800
"""Energies and forces with which hyperparameters are learned, where there are more."""
ENOUGH = 1.0
"""Nats of thousands that are not worth further iterations: rounding alone moves this evidence by a tenth."""
LONG = 10.0
"""Lengthscales start at so many times the spread of inverse distances: energies are smooth."""
WIDE = 3.0
"""The prior variance of forces starts at so many times their mean square."""
NOISE_START = {"energies": 1e-5, "forces": 1e-7}
NOISE_LEAST = {"energies": 1e-9, "forces": 1e-8}
"""Variances of noise, over the mean square of what is observed: computed forces have hardly any.

Turns and shifts fix six forces of a geometry exactly, which rewards less noise than the others have. Without
a floor the kernel then follows errors along bonds (forces of springs with such errors of 0.1 %: error 10 %
with a floor of 1e-11, 0.1 % with 1e-8; forces of ethanol and malonaldehyde are the same).
"""
FEW = 10
"""Geometries that set the scale of the prior."""
COINCIDENT = 1e-6
"""Atoms nearer to each other than this share of the molecule's size are at the same place."""


@final
class MoleculeGP(LearnedOrbit, RegressionPredictions, RegressorMixin, BaseEstimator):
    """Energies and forces of a molecule, by a Gaussian process that knows its symmetries.

    The energy is a function of the inverse distances between atoms, so it does not change when the molecule
    is moved, turned or reflected, and it is averaged over the exchanges of like atoms that break no bond.
    Forces are minus its gradient, both as observations and as predictions. How much the energy depends on the
    distances of each kind of pair, how smooth it is and how noisy the data are, is learned by the evidence:
    there is nothing to set, and no validation set is needed. Units are those of the data.

    Parameters
    ----------
    z : array-like of shape (n_atoms,)
        The atomic numbers, in the order in which geometries list the atoms.
    exchanges : "auto", None or array-like of shape (n_exchanges, n_atoms), default="auto"
        Which like atoms may change places. "auto" finds the exchanges that map bonds on bonds and can happen
        without breaking any: turns of groups, and mirror images. None takes none. An array holds a
        permutation of 0, …, n_atoms - 1 in each row, which together generate the group that is used.
    kernel : gpytorch.kernels.Kernel, default=None
        The kernel of the energy as a function of the weighted inverse distances. None takes the rational
        quadratic, whose smoothness is learned. It needs derivatives: RBF, Matérn-3/2 or 5/2, or one with a
        method `radial_profile`. Its scale is learned, and its lengthscale is 1 because the distances have
        weights.
    num_learn : int, default=None
        Geometries, evenly spaced among those of the fit, by whose evidence hyperparameters are learned. None
        takes as many as have 1,800 energies and forces. All geometries then enter the posterior.
    max_iterations : int, default=None
        Iterations of learning at most. None takes 200; 0 keeps the start.
    max_seconds : float, default=None
        Seconds after which learning takes no further step. None takes the time it needs.
    verbose : bool, default=False
        Whether to show progress.
    callback : callable, default=None
        A function of (step, evidence), called at every iteration of learning. It may raise KeyboardInterrupt
        to end the learning, which keeps the best so far, as Ctrl-C does.

    Attributes
    ----------
    exchanges_ : ndarray of shape (n_exchanges, n_atoms)
        The group of exchanges over which the energy is averaged, the identity first.
    distance_weights_ : ndarray of shape (n_atoms, n_atoms)
        How much the energy depends on the inverse distance of each pair of atoms; 0 on the diagonal.
    kernel_ : gpytorch.kernels.Kernel
        The learned kernel, of weighted inverse distances.
    hyperparameters_ : list of Hyperparameter
        Lengthscales, variances and noise by name, in the units of the data.
    noise_ : float
        The learned noise variance of energies, in their unit squared; without energies next to 0.
    force_noise_ : float
        The learned noise variance of a component of a force, in its unit squared; only with forces.
    inference_ : str
        "exact".
    log_evidence_ : float
        log p(energies, forces) of all geometries at the learned hyperparameters, in nats.
    evidence_kind_ : str
        "exact".
    log_evidence_error_ : float
        0, because nothing is drawn.
    converged_ : bool
        Whether learning converged.
    history_ : list of float
        The evidence of the geometries that teach, at every iteration.
    stopped_by_ : str
        What ended learning early, "interrupted" or "time is over"; only where something did.
    orbit_ : FiniteOrbit
        The exchanges as an orbit of the coordinates.
    functional_ : Functional
        L, with energy(x) = L_x g.
    posterior_ : Posterior
        The posterior of g, which predicts any functional of it.
    n_features_in_ : int
        Number of coordinates, 3 · n_atoms.

    See Also
    --------
    InvariantGPRegressor : Takes any features, invariances and observed functionals.

    Examples
    --------
    Two hydrogen atoms and an oxygen atom, whose energy is a sum of springs:

    >>> import numpy as np
    >>> from orbitwise import MoleculeGP
    >>> water = np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
    >>> x = water + 0.05 * np.random.default_rng(0).normal(size=(40, 3, 3))
    >>> lengths = np.linalg.norm(x[:, 1:] - x[:, :1], axis=-1)
    >>> energies = ((lengths - 0.96) ** 2).sum(axis=1)
    >>> pulls = 2 * (lengths - 0.96)[..., None] * (x[:, 1:] - x[:, :1]) / lengths[..., None]
    >>> forces = np.concatenate([pulls.sum(axis=1, keepdims=True), -pulls], axis=1)
    >>> model = MoleculeGP(z=[8, 1, 1]).fit(x[:20], energies[:20], forces[:20])
    >>> model.exchanges_.tolist()
    [[0, 1, 2], [0, 2, 1]]
    >>> bool(np.abs(model.predict_forces(x[20:]) - forces[20:]).max() < 0.01)
    True
    """

    n_features_in_: int
    # distances have no ranges to learn, and the features are part of the functional
    invariance: Invariance = None
    features: Features | None = None
    inference_: str = "exact"

    stored = Stored(
        fitted={"model_": Field((RegressionModel,)), "noise_": Field((int, float), least=0)},
        sometimes={"force_noise_": Field((int, float), least=0)},
    )

    def __init__(
        self,
        z: ArrayLike,
        exchanges: Literal["auto"] | ArrayLike | None = "auto",
        *,
        kernel: Kernel | None = None,
        num_learn: int | None = None,
        max_iterations: int | None = None,
        max_seconds: float | None = None,
        verbose: bool = False,
        callback: Callable[[int, float], None] | None = None,
    ) -> None:
        self.z = z
        self.exchanges = exchanges
        self.kernel = kernel
        self.num_learn = num_learn
        self.max_iterations = max_iterations
        self.max_seconds = max_seconds
        self.verbose = verbose
        self.callback = callback

    def check_parts(self) -> None:
        super().check_parts()
        self.model_.check_fits(self.n_features_in_, self.posterior_.num_outputs)
        require(self.n_features_in_ == 3 * len(_atomic_numbers(self.z)), "a molecule of other atoms")
        require(_distances_in(self.functional_) is not None, "a functional of no distances")

    @property
    def latent_functional(self) -> Functional:
        """L of the model energy = L g."""
        return self.model_.latent.functional

    @property
    def exchanges_(self) -> NDArray[np.int64]:
        """The group of exchanges of like atoms, one permutation in each row."""
        check_is_fitted(self)
        transform = self.orbit_.transform
        assert isinstance(transform, SignedPermutations)
        return (transform.index[:, ::3] // 3).cpu().numpy()

    @property
    def distance_weights_(self) -> NDArray[np.float64]:
        """How much the energy depends on the inverse distance of each pair of atoms."""
        check_is_fitted(self)
        distances = _distances_in(self.functional_)
        assert distances is not None
        (first, second), weights = distances.pairs, distances.weights.detach()[distances.kinds]
        table = torch.zeros(distances.num_points, distances.num_points, dtype=weights.dtype)
        table[first, second] = table[second, first] = weights
        return table.numpy()

    @learning("log_evidence_", "noise_")
    def fit(self, X: ArrayLike, y: ArrayLike | None = None, forces: ArrayLike | None = None) -> MoleculeGP:
        """Learn from energies, from forces, or from both.

        Parameters
        ----------
        X : array-like of shape (n_geometries, n_atoms, 3)
            The coordinates of the atoms, at least two geometries.
        y : array-like of shape (n_geometries,), default=None
            The energies. Without them, the energy of the first geometry counts as 0, because forces leave a
            constant open.
        forces : array-like of shape (n_geometries, n_atoms, 3), default=None
            The forces, in units of energy per unit of length. They teach far more than energies.

        Returns
        -------
        MoleculeGP
            The fitted estimator.
        """
        check_settings(self)
        z = _atomic_numbers(self.z)
        data = _training_data(X, y, forces, len(z))
        self.form_, self.n_features_in_ = InputForm(input_shape=(len(z), 3)), 3 * len(z)
        order = torch.from_numpy(self._found_exchanges(z, data.x.reshape(-1, len(z), 3).numpy()))
        coordinates = (order[:, :, None] * 3 + torch.arange(3)).flatten(1)
        self.orbit_ = FiniteOrbit(SignedPermutations(coordinates, is_group=True))
        self.model_ = model = _model(data, order, self.kernel)
        self.target_scale_ = model.target_scale
        settings = FitSettings(torch.Generator().manual_seed(0), max_iterations=iterations_of(self))
        with self._reporter("exact inference", self.max_seconds) as reporter:
            settings = replace(settings, reporter=reporter)
            reporter.begin(Phase("learning", settings.max_iterations))
            objective = ExactEvidence(model.latent, self._teachers(data, model.target_scale))
            history, settled = _learned(objective, settings)
            found = run_engine("exact", model.latent, model.observations, replace(settings, max_iterations=0))
        converged = settled and not found.stopped
        result = replace(found, converged=converged, history=history)
        self._set_result(result.in_units(-model.log_unit), model.latent.process)
        vars(self).pop("force_noise_", None)
        self.noise_ = model.target_scale.variance(model.latent.noise.detach().reshape(1))
        if forces is not None:
            (self.force_noise_,) = model.other_noise()
        return self

    @answering
    def predict_forces(
        self, X: ArrayLike, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The forces on all atoms, minus the slopes of the predicted energy: [n_geometries, n_atoms, 3].

        With `return_std`, also the standard deviation of each component under the posterior, noise left out.
        """
        shape = (-1, self.n_features_in_ // 3, 3)
        if not return_std:
            return -self._mean_slopes(self._inputs(X)).reshape(shape)
        mean, deviation = self.predict_functional(Gradient(), X, return_std=True)
        return -mean.reshape(shape), deviation.reshape(shape)

    @torch.no_grad()
    def _mean_slopes(self, x: Float[Tensor, "n d"]) -> NDArray[np.float64]:
        """The mean of `predict_functional(Gradient(), x)` by the chain rule, Σ_k ∂φ_k/∂x ∂f/∂φ_k.

        Where the kernel does not mind exchanges, averaging the side of the training data suffices.
        """
        whole, process = self.functional_, self.posterior_.process
        assert isinstance(whole, Composition)
        distances, average = whole.outer, whole.inner
        assert isinstance(distances, InverseDistances)
        features = distances.atoms(x).points[:, 0]
        averaged = average.atoms(features[:1])
        by_features = Gradient() if process.shares_symmetry(averaged) else Gradient() @ average
        found = [self.posterior_.row_mean(by_features.atoms(part)) for part in features.split(ROWS_AT_ONCE)]
        slopes = torch.cat(found).reshape(features.shape)
        return (distances.pulled_back(x, slopes) * self.target_scale_.scale).numpy()

    def _inputs(self, X: ArrayLike, plain: bool = True) -> Tensor:
        check_is_fitted(self)
        return torch.from_numpy(_geometries(X, "X", self.n_features_in_ // 3))

    def _found_exchanges(self, z: NDArray[np.int64], x: NDArray[np.float64]) -> NDArray[np.int64]:
        """The group that `exchanges` asks for."""
        if isinstance(self.exchanges, str) and self.exchanges == "auto":
            return like_atom_exchanges(z, x)
        alone = np.arange(len(z))[None]
        if self.exchanges is None:
            return alone
        given = np.asarray(self.exchanges)
        if given.dtype.kind not in "iu" or given.ndim != 2 or (np.sort(given, 1) != alone).any():
            raise ValueError(
                f"exchanges must be 'auto', None or rows that each hold 0, …, {len(z) - 1} once, not "
                f"{self.exchanges!r}."
            )
        if (wrong := z[given] != z).any():
            row, atom = np.argwhere(wrong)[0]
            raise ValueError(
                f"exchanges[{row}] puts atom {given[row, atom]} in the place of atom {atom}, but their "
                f"atomic numbers are {z[given[row, atom]]} and {z[atom]}: only like atoms can be exchanged."
            )
        return generated_exchanges(given)

    def _teachers(self, data: TrainingData, to: TargetScale) -> tuple[Observations, ...]:
        """The observations at the geometries that teach the hyperparameters."""
        width = data.x.shape[1]
        count = math.ceil(LEARNED_ROWS / width) if self.num_learn is None else self.num_learn
        return _observations(data.evenly(count), to)


def _is_enough(history: list[float]) -> bool:
    return gained_little(history, ENOUGH)


def _learned(objective: ExactEvidence, settings: FitSettings) -> tuple[list[float], bool]:
    """The evidence at every iteration, and whether it settled.

    Noise of forces is so small that rounding may end a line search. L-BFGS then begins anew where it is, and
    has settled if it gains next to nothing.
    """
    history, best = list[float](), -math.inf
    while True:
        left = replace(settings, max_iterations=settings.max_iterations - len(history))
        training = left.maximize(objective, objective.model, _is_enough)
        gain, best = training.value - best, training.value
        history += training.history
        if training.has_settled or _is_enough(training.history):
            return history, True
        if len(history) >= settings.max_iterations or settings.reporter.is_over():
            return history, False
        # not so for NaN
        if not gain >= ENOUGH:
            return history, gain < ENOUGH


@final
class TrainingData(NamedTuple):
    """Coordinates, energies and slopes of the energy; at least one of the latter is there."""

    x: Float[Tensor, "n d"]
    energies: Float[Tensor, " n"] | None
    slopes: Float[Tensor, "n d"] | None

    def evenly(self, count: int) -> TrainingData:
        """So many geometries, evenly spaced in the order of a trajectory, the first among them."""
        if len(self.x) <= count:
            return self
        chosen = torch.linspace(0, len(self.x) - 1, count, dtype=torch.float64).round().long()
        energies, slopes = (None if part is None else part[chosen] for part in self[1:])
        return TrainingData(self.x[chosen], energies, slopes)


def _atomic_numbers(z: ArrayLike) -> NDArray[np.int64]:
    numbers = np.asarray(z)
    is_fine = numbers.ndim == 1 and numbers.dtype.kind in "iu" and len(numbers) > 1
    if not is_fine or numbers.min() < 1 or numbers.max() > 118:
        raise ValueError(
            "z must hold the atomic numbers of at least two atoms, whole numbers from 1 to 118, such as "
            f"[8, 1, 1] for water, not {z!r}."
        )
    return numbers.astype(np.int64)


def _geometries(X: ArrayLike, name: str, num_atoms: int) -> NDArray[np.float64]:
    """Geometries as rows of 3 · atoms finite coordinates, no two atoms at the same place."""
    given = check_numbers(X, name)
    rows = given.reshape(len(given), -1)
    if given.shape[1:] not in ((num_atoms, 3), (3 * num_atoms,)):
        single = " One geometry is x[None]." if given.shape == (num_atoms, 3) else ""
        raise ValueError(
            f"{name} must have the shape [geometries, {num_atoms}, 3], for the {num_atoms} atoms of z, not "
            f"{given.shape}.{single}"
        )
    points = rows.reshape(-1, num_atoms, 3)
    squares = np.square(points[:, :, None] - points[:, None]).sum(-1)
    largest = squares.max((1, 2), keepdims=True)
    near = np.triu(squares <= COINCIDENT**2 * largest, 1)
    if near.any():
        row, first, second = np.argwhere(near)[0]
        raise ValueError(
            f"Atoms {first} and {second} are at the same place in {name}[{row}], where no energy is finite: "
            "leave out that geometry, and look whether coordinates are in the order of z."
        )
    return rows


def _training_data(
    X: ArrayLike, y: ArrayLike | None, forces: ArrayLike | None, num_atoms: int
) -> TrainingData:
    """Checked training data."""
    x = _geometries(X, "X", num_atoms)
    if len(x) < 2:
        raise ValueError("MoleculeGP needs at least 2 geometries, and was given 1.")
    if y is None and forces is None:
        raise ValueError("MoleculeGP learns from energies, forces or both: fit(x, energies, forces).")
    energies = slopes = None
    if y is not None:
        energies = check_numbers(y, "y", ensure_2d=False)
        if energies.shape not in ((len(x),), (len(x), 1)):
            raise ValueError(f"y must hold the energies of {len(x)} geometries, not shape {energies.shape}.")
        energies = torch.from_numpy(energies.reshape(-1))
    if forces is not None:
        given = check_numbers(forces, "forces")
        if given.shape not in ((len(x), num_atoms, 3), x.shape):
            raise ValueError(f"forces must have the shape of X, {(len(x), num_atoms, 3)}, not {given.shape}.")
        slopes = torch.from_numpy(-given.reshape(x.shape))
    return TrainingData(torch.from_numpy(x), energies, slopes)


def _observations(data: TrainingData, to: TargetScale) -> tuple[Observations, ...]:
    """Standardised energies, and slopes in the same unit; without energies, that the first one is zero."""
    x, energies, slopes = data
    if energies is None:
        first = Observations(Evaluation(), x[:1], torch.zeros_like(x[:1, :1]))
    else:
        first = Observations(Evaluation(), x, to.standardised(energies[:, None]))
    if slopes is None:
        return (first,)
    return first, Observations(Gradient(), x, slopes.reshape(-1, 1) / to.scale)


def _model(data: TrainingData, order: Int[Tensor, "e atoms"], kernel: Kernel | None) -> RegressionModel:
    """The model with its hyperparameters where learning starts."""
    x, energies, slopes = data
    moves = permutations_of_pairs(order).unique(dim=0)
    kinds = moves.amin(0).unique(return_inverse=True)[1]
    with torch.no_grad():
        distances = InverseDistances(kinds).atoms(x).points[:, 0]
    spread = float((distances - distances.mean(0)).square().sum(1).mean().sqrt())
    size = float(distances.square().sum(1).mean().sqrt())
    features = InverseDistances(kinds, 1 / (LONG * max(spread, COINCIDENT * size)))
    functional = features @ OrbitAverage(FiniteOrbit(SignedPermutations(moves, is_group=True)))
    # the unit of energy: what typical forces do over a distance within the molecule
    if slopes is not None:
        unit = float(slopes.square().mean().sqrt() / distances.median())
    else:
        unit = 0.0 if energies is None else float(energies.std(correction=0))
    shift = torch.zeros(1, dtype=x.dtype) if energies is None else energies.mean()[None]
    to = TargetScale(shift, torch.full_like(shift, unit or 1.0), is_vector=True)
    observations = _observations(data, to)
    process = Process(None, _scaled_kernel(kernel)).double()
    with torch.no_grad():
        if slopes is None:
            scale = WIDE * LONG**2 * observations[0].size
        else:
            rows = (Gradient() @ functional).atoms(data.evenly(FEW).x)
            variance = process.variance(rows).mean()
            scale = WIDE * observations[1].size / float(variance)
    process.kernel.outputscale = scale  # pyright: ignore[reportArgumentType]
    noises = [_noise("energies", observations[0], energies is not None)]
    noises += [_noise("forces", each) for each in observations[1:]]
    latent = LatentModel(process, functional, noises[0], noises[1:]).double()
    return RegressionModel(latent, observations, to)


def _noise(kind: Literal["energies", "forces"], rows: Observations, learnable: bool = True) -> Gaussian:
    """Noise that starts small compared with what is observed; that of a convention is not learned."""
    floor = NOISE_LEAST[kind] * rows.size
    return Gaussian(NOISE_START[kind] * rows.size if learnable else floor, learnable=learnable, floor=floor)


def _scaled_kernel(kernel: Kernel | None) -> ScaleKernel:
    """A kernel with a learned scale, and with the lengthscale 1 because features have weights."""
    base = RQKernel() if kernel is None else copy.deepcopy(kernel)
    if isinstance(base, ScaleKernel):
        base = base.base_kernel
    if base.has_lengthscale:
        base.lengthscale = torch.ones(())
        base.raw_lengthscale.requires_grad_(False)
    return ScaleKernel(base, outputscale_constraint=log_positive())


def _distances_in(functional: Functional) -> InverseDistances | None:
    """The distances on which an energy depends."""
    outer = functional.outer if isinstance(functional, Composition) else None
    return outer if isinstance(outer, InverseDistances) else None
