"""The model behind the regressors: standardised targets, rows of all observations, and their evidence.

Rows of equal inputs are merged without loss: a Gaussian needs only their mean, weight and scatter.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import ConstantMean, Mean, ZeroMean
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from orbitwise.declarations import COUNT, POSITIVE, SMALLEST, Field, Stored, require
from orbitwise.estimators.validation import check_numbers, check_rows
from orbitwise.functionals.functional import Block, Evaluation, Functional
from orbitwise.inference import exact
from orbitwise.inference.exact import ExactEvidence
from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.model import LatentModel, Observations, Posterior
from orbitwise.inference.optimise.cost import users_level
from orbitwise.inference.optimise.hyperpriors import log_prior
from orbitwise.inference.optimise.training import assign, maximize, values_of
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.inference.stored_rows import StoredRows, held_rows, is_large, typical_rows
from orbitwise.kernels.bases import LinearTrend, default_kernel, typical_spread
from orbitwise.likelihoods.gaussian import NOISE_FLOOR, Gaussian
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Process


def merge(
    x: NDArray[np.float64] | StoredRows, y: NDArray[np.float64], weight: NDArray[np.float64]
) -> Observations:
    """Distinct inputs in a fixed order, with mean, weight and scatter of the targets seen there.

    Rows of weight zero are left out. Stored rows stay in the order in which they are stored.
    """
    kept = weight > 0
    if not kept.any():
        raise ValueError("All sample weights are zero: at least one row needs a positive weight.")
    if isinstance(x, StoredRows):
        x = x if kept.all() else x.at(np.flatnonzero(kept))
        stored, place = x.distinct()
        distinct = stored if is_large(*stored.shape) else held_rows(stored)
    else:
        found, place = np.unique(x[kept], axis=0, return_inverse=True)
        distinct, place = torch.from_numpy(found), place.ravel()
    y, weight = y[kept], weight[kept]
    # A fixed order of summation within equal inputs, so that the order of rows leaves no trace in rounding.
    order = np.lexsort((weight, *y.T, place))
    y, weight, place = y[order], weight[order], place[order]

    def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Σ w over the rows of each input, for every column."""
        columns = [np.bincount(place, weight * column, len(distinct)) for column in values.T]
        return np.stack(columns, axis=1).astype(np.float64)

    total = sums(np.ones_like(y[:, :1]))
    mean = sums(y) / total
    targets, scatter = torch.from_numpy(mean), torch.from_numpy(sums((y - mean[place]) ** 2))
    return Observations(Evaluation(), distinct, targets, torch.from_numpy(total[:, 0]), scatter)


def without_noise(rows: Observations) -> Observations:
    """The same rows for noiseless targets: repeating one says nothing new, so it counts once."""
    assert rows.scatter is not None
    rounding = rows.weights()[:, None] * (1e-12 * rows.targets.abs()) ** 2
    if bool((rows.scatter > rounding).any()):
        raise ValueError(
            "noise=0 says that targets are exact, but equal inputs have different targets; "
            "give a positive noise, or None to learn it."
        )
    return replace(rows, weight=torch.ones_like(rows.weights()), scatter=torch.zeros_like(rows.scatter))


Observation = tuple[Functional, ArrayLike, ArrayLike, float | None]
NOISE_START, NOISY_START = 0.05, 0.5
LENGTHSCALE_DEVIATION = 1.5
"""Of the logarithm of a column's lengthscale under the hyperprior of the default kernel. The evidence of some
hundred rows has several maxima, with lengthscales that fit chance; it outweighs the hyperprior with many."""


@final
class TargetScale(NamedTuple):
    """How targets were standardised: y = scale·f + shift per output, and whether y was given as a vector."""

    shift: Tensor
    scale: Tensor
    is_vector: bool = False

    stored = Stored({"scale": POSITIVE})

    def check_fits(self, posterior: Posterior, likelihood: Likelihood, told: object) -> None:
        """Raise a ValueError where this scale, or the given noise of a likelihood, is of other outputs."""
        num_outputs = posterior.num_outputs
        fits = self.scale.shape == self.shift.shape == (num_outputs,)
        require(fits, "a scale of other outputs")
        require(num_outputs == 1 or not self.is_vector, "several outputs in place of one")
        if isinstance(likelihood, Gaussian):
            for noise in (likelihood.noise.detach().cpu().numpy(), np.asarray(told)):
                fits = noise.dtype.kind in "fiu" and noise.shape in ((), (1,), (num_outputs,))
                require(fits, "noise of other outputs")

    def standardised(self, targets: Tensor) -> Tensor:
        """(y - shift) / scale."""
        return (targets - self.shift) / self.scale

    def targets(self, standardised: Tensor) -> Tensor:
        """scale·f + shift, on the CPU."""
        return standardised.cpu() * self.scale + self.shift

    def as_given(self, values: Tensor) -> NDArray[np.float64]:
        """Values [n, …, c] as an array, without the last axis where targets were given as a vector."""
        return (values[..., 0] if self.is_vector else values).numpy()

    def variance(self, standardised: Tensor) -> float | NDArray[np.float64]:
        """A variance in units of the targets squared: a number, or one per output when there are several."""
        variance = (standardised.cpu() * self.scale.square()).numpy()
        return float(variance[0]) if len(variance) == 1 else variance

    @property
    def log_unit(self) -> float:
        """Σ log scale over the outputs: p(y) = p(standardised y) / scale, for every row and output."""
        return float(self.scale.log().sum())


class EvidenceTerms(NamedTuple):
    """The evidence of the targets as they were given: value = fit + complexity + constant."""

    value: float
    fit: float
    complexity: float
    constant: float
    jitter: float


EARLIER = Field(read=lambda model: None)
"""An argument that is in files of earlier versions only."""


@final
@dataclass
class RegressionModel:
    """y = scale·f + shift + noise: a latent model of standardised targets, and what is observed.

    The first observations are of f itself, equal rows merged; others are of other functionals of f.
    """

    latent: LatentModel
    observations: tuple[Observations, ...]
    target_scale: TargetScale

    stored = Stored(
        {
            "fixed_noise": EARLIER,
            "functional": Field(read="latent.functional"),
            "likelihood": Field(read="latent.likelihood"),
            "outputs": EARLIER,
            "process": Field(read="latent.process"),
            "raw_noise": EARLIER,
            "scale": Field(least=SMALLEST, read="target_scale.scale"),
            "shift": Field(read="target_scale.shift"),
            "width": COUNT,
        },
        build="of_no_rows",
    )

    @classmethod
    def of_no_rows(
        cls,
        process: Process,
        functional: Functional,
        width: int,
        likelihood: Likelihood | None = None,
        scale: Float[Tensor, " c"] | None = None,
        shift: Float[Tensor, " c"] | None = None,
        outputs: int = 1,
        fixed_noise: Float[Tensor, " k"] | None = None,
        raw_noise: Float[Tensor, ""] | None = None,
    ) -> RegressionModel:
        """A model of no rows, from which a later fit resumes; the noise is Gaussian without a likelihood."""
        if likelihood is None and fixed_noise is not None:
            likelihood = Gaussian(fixed_noise[0].item(), learnable=False)
        elif likelihood is None:
            likelihood = Gaussian()
            if raw_noise is not None:
                likelihood.raw_noise.data = raw_noise.reshape(1)
        unit = torch.ones(outputs, dtype=torch.float64)
        to = TargetScale(torch.zeros_like(unit) if shift is None else shift, unit if scale is None else scale)
        x, targets = (torch.zeros(0, size, dtype=torch.float64) for size in (width, len(to.scale)))
        latent = LatentModel(process, functional, likelihood)
        return cls(latent, (Observations(Evaluation(), x, targets),), to)

    def with_noise(self, noise: float) -> RegressionModel:
        """The same model under learned noise of this variance, with a likelihood of its own; else itself."""
        given = self.latent.likelihood
        assert isinstance(given, Gaussian)
        if given.is_fixed or not given.shares_curvature or noise == float(given.noise.detach()):
            return self
        likelihood = copy.deepcopy(given)
        likelihood.raw_noise.data.fill_(math.log(max(noise - given.floor, SMALLEST)))
        latent = self.latent
        return replace(self, latent=LatentModel(latent.process, latent.functional, likelihood, latent.others))

    def check_fits(self, width: int, num_outputs: int) -> None:
        """Raise a ValueError where this is a model of other inputs or outputs."""
        require(self.width == width, "a model of other inputs")
        require(self.observations[0].targets.shape[1] == num_outputs, "a model of other outputs")

    @property
    def width(self) -> int:
        """The number of columns of the inputs."""
        return self.observations[0].x.shape[1]

    def at(self, functional: Functional) -> RegressionModel:
        """The same model with f = L g of another functional, say a frozen one; all else is shared."""
        return replace(self, latent=self.latent.at(functional))

    def to(self, device: str | torch.device) -> RegressionModel:
        """The model moved to a device; the scale of the targets stays, because predictions come back."""
        observations = tuple(each.to(device) for each in self.observations)
        return replace(self, latent=self.latent.to(device), observations=observations)

    @property
    def exact(self) -> ExactEvidence:
        """The exact evidence of all observations, standardised; the functional must be frozen."""
        return ExactEvidence(self.latent, self.observations)

    @property
    def log_unit(self) -> float:
        """log p(standardised y) - log p(y) of all observations."""
        return sum(each.count for each in self.observations) * self.target_scale.log_unit

    def other_noise(self) -> list[float | NDArray[np.float64]]:
        """The noise variance of each observation of another functional, in units of the targets squared."""
        return [self.target_scale.variance(each.noise.detach()) for each in self.latent.others]

    @torch.no_grad()
    def evidence(self, posterior: exact.ExactPosterior) -> EvidenceTerms:
        """The evidence of the targets as given: merging is undone, and standardising by its Jacobian."""
        first, noise = self.observations[0], self.latent.noise
        terms, scale = posterior.evidence(), self.target_scale.scale
        value = float(terms.value + first.merged_term(noise)) - self.log_unit
        # -½ (y-m)ᵀ(K+Σ)⁻¹(y-m) of all rows: that of the means, and the scatter around them
        fit = float(terms.fit) + first.scatter_term(float(noise))
        count = sum(each.count for each in self.observations)
        constant = -0.5 * count * len(scale) * math.log(2 * math.pi)
        return EvidenceTerms(value, fit, value - fit - constant, constant, terms.jitter)


def prepare(
    x: NDArray[np.float64] | StoredRows,
    y: NDArray[np.float64],
    weight: NDArray[np.float64],
    functional: Functional,
    kernel: Kernel | None,
    noise: float | None,
    mean: str,
    normalize_y: bool,
    one_sided: Literal["auto"] | bool,
    observations: Sequence[object],
    is_image: bool = False,
    likelihood: Likelihood | None = None,
    is_vector: bool = False,
) -> RegressionModel:
    """A model ready to be trained, from validated data and the arguments of an estimator.

    Without a `likelihood`, noise is Gaussian, of the variance `noise` or learned.
    """
    merged = merge(x, y, weight)
    rows = without_noise(merged) if noise == 0 else merged
    functional, points = functional.double(), typical_rows(rows.x)
    with torch.no_grad():
        atoms = functional.atoms(points)
    exact.refuse_drawn(atoms)
    if atoms.num_rows != len(points):
        raise ValueError(
            f"invariance must make one row per input; {type(functional).__name__} makes several."
        )
    total = _constant_part(atoms)
    keeps_constants = bool(total[0].abs() > 1e-12) and torch.allclose(total, total[0].expand_as(total))
    centre = 0.0
    if likelihood is None or (likelihood.is_additive and not likelihood.has_heavy_tails):
        scale, shift = standardisation(rows, normalize_y, keeps_constants)
    elif likelihood.is_additive:
        scale, shift = _robust_standardisation(y, normalize_y, keeps_constants)
    else:
        scale, shift = standardisation(rows, False, False)
        centre = likelihood.prior_mean(torch.from_numpy(y)) if normalize_y else 0.0
    # standardised targets have unit size; others say by theirs where variances start, and how far noise falls
    is_as_given = likelihood is None and not normalize_y
    size = rows.size if is_as_given else 1.0
    if kernel is None:
        # pixels share a lengthscale, as they do under every invariance of images
        separate = functional.is_identity and not is_image
        deviation = LENGTHSCALE_DEVIATION if separate else None
        base = default_kernel(atoms.points[:, 0], separate, size, deviation)
    else:
        base = copy.deepcopy(kernel).double()
    process = Process(_mean(mean, atoms.points.flatten(0, 1), centre), base, one_sided).double()
    try:
        process.variance(atoms.rows(slice(0, 1)))
    except (IndexError, RuntimeError) as error:
        raise ValueError(f"kernel does not take points of width {atoms.points.shape[-1]}: {error}") from error
    to = TargetScale(shift, scale, is_vector)
    others = [_observed(observation, x.shape[1], to) for observation in observations]
    variances = [None if likelihood is not None else noise, *(variance for _, variance in others)]
    if len(scale.unique()) > 1 and any(variance is not None for variance in variances):
        raise ValueError(
            "A fixed noise needs targets of one scale: pass normalize_y=False, or fit outputs one by one."
        )
    own = _noise(noise, to, size) if likelihood is None else likelihood
    latent = LatentModel(process, functional, own, [_noise(v, to, rows.size) for rows, v in others])
    assert rows.scatter is not None
    rows = replace(rows, targets=to.standardised(rows.targets), scatter=rows.scatter / scale.square())
    return RegressionModel(latent, (rows, *(each for each, _ in others)), to)


def warn_of_few_targets(name: str, model: RegressionModel) -> None:
    """Warn where so few targets are observed that nothing is known about how far they vary."""
    count = sum(each.count for each in model.observations)
    if count < FEWEST_TARGETS:
        few = "One target does" if count == 1 else f"{count:g} targets do"
        warnings.warn(
            f"{few} not say how far targets vary, so the error bars of {name} are a guess: give at least "
            f"{FEWEST_TARGETS} rows.",
            UserWarning,
            stacklevel=users_level(sys._getframe()),
        )


def _noise(variance: float | None, scale: TargetScale, size: float) -> Gaussian:
    """Noise of this variance, in units of y squared, or learned noise; for targets of this mean square."""
    floor = size * NOISE_FLOOR
    if variance is not None:
        return Gaussian(float(variance / scale.scale[0] ** 2), learnable=False, floor=floor)
    return Gaussian(size * NOISE_START, floor=floor)


FEWEST_TARGETS = 3
"""With fewer, the spread of the targets is no better known than the targets themselves."""
START_ROWS = 500
"""Rows on which starts are compared."""
START_ITERATIONS = 30
BETTER = 1.0
"""Nats by which the other start must be better."""
FIRMER = 2.25
"""How often the hyperprior counts where starts are compared, which makes its deviation 1 instead of 1.5. A
maximum that fits chance with long lengthscales also predicts the rows that were left out, of which all others
chose it; what is learned from the better start then does not need as firm a hyperprior."""


def begin_at_best(model: RegressionModel, num_inducing: int | None = None) -> None:
    """Take the start of the default kernel from where some rows are predicted best by each other.

    Lengthscales of columns start long, at √d times their spread, and the noise small. The evidence often has
    another maximum, with rapid changes along few columns, to which short ones and much noise lead. They are
    compared by the density of targets left out one at a time: a maximum without noise, where equal rows have
    equal targets, may have far more evidence and predict nothing else. If inference is by `num_inducing`
    inducing points, their bound must be greater there as well, because few of them cannot follow rapid
    changes. Hyperpriors of the kernel are firmer here.
    """
    latent, (rows,) = model.latent, model.observations
    (kernel, likelihood), width = (latent.process.kernel, latent.likelihood), rows.x.shape[1]
    if not isinstance(kernel, ScaleKernel) or not isinstance(likelihood, Gaussian) or width == 1:
        return
    # the same rows for every seed, because exact inference draws nothing
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:START_ROWS].sort().values
    objective, parameters = ExactEvidence(latent, (rows.take(order),)), latent.learned
    starts = [values_of(parameters)]

    def firm() -> Tensor:
        return objective() + (FIRMER - 1) * log_prior(latent.process)

    near = kernel.base_kernel.lengthscale.detach() / width**0.5
    kernel.base_kernel.lengthscale = near
    if not likelihood.is_fixed:
        with torch.no_grad():
            likelihood.raw_noise.fill_(math.log(NOISY_START * rows.size))
    starts.append(values_of(parameters))
    reached: list[tuple[float, float]] = []
    for start in starts:
        assign(parameters, start)
        try:
            maximize(firm, parameters, START_ITERATIONS)
            value = bound = _held_out_density(objective)
            if num_inducing is not None and num_inducing < len(order):
                bound = _sparse_bound(objective, num_inducing)
        except NOT_COMPUTABLE:
            value = bound = -math.inf
        reached.append((value, bound))
    if any(there <= here + BETTER for here, there in zip(*reached, strict=True)):
        assign(parameters, starts[0])


@torch.no_grad()
def _held_out_density(objective: ExactEvidence) -> float:
    """Σ log p(target | all others) at the present hyperparameters; equal rows are left out together."""
    return float(objective.posterior().leave_one_out().log_density.sum())


@torch.no_grad()
def _sparse_bound(objective: ExactEvidence, num_inducing: int) -> float:
    """The bound by so many inducing points at the present hyperparameters."""
    latent, (rows,) = objective.model, objective.observations
    sparse = SparseModel(latent.process, rows, latent.likelihood)
    sparse.place_best(num_inducing, torch.Generator().manual_seed(0))
    return float(sparse.bound())


def sparse_form(model: RegressionModel) -> RegressionModel:
    """The model with Gaussian noise that stays above its floor, as sparse engines need; else as it is."""
    latent, given = model.latent, model.latent.likelihood
    if not isinstance(given, Gaussian):
        return model
    noise = latent.noise.item() + (given.floor if given.is_fixed else 0.0)
    likelihood = Gaussian(noise, learnable=not given.is_fixed, floor=given.floor).to(latent.noise.device)
    return replace(model, latent=LatentModel(latent.process, latent.functional, likelihood))


def generator_on(device: str | torch.device, generator: torch.Generator) -> torch.Generator:
    """The generator itself where it is there already, else one on the device with its seed."""
    device = torch.device(device)
    if generator.device.type == device.type:
        return generator
    return torch.Generator(device).manual_seed(generator.initial_seed())


def constant_part(functional: Functional, x: Tensor) -> Tensor:
    """What the functional makes of the constant function 1, for every row."""
    return _constant_part(functional.atoms(x))


def _constant_part(block: Block) -> Tensor:
    return block.constant_part().detach()


def standardisation(rows: Observations, normalize_y: bool, centre: bool) -> tuple[Tensor, Tensor]:
    """Scale and shift of targets with mean 0 (if they are centred) and mean square 1, for every output."""
    outputs = rows.targets.shape[1]
    if not normalize_y:
        return torch.ones(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64)
    scatter = np.zeros(1) if rows.scatter is None else rows.scatter.numpy()
    y, weight = rows.targets.numpy(), rows.weights().numpy()[:, None]
    shift = (weight * y).sum(0) / weight.sum() if centre else np.zeros(outputs)
    squares = (weight * (y - shift) ** 2 + scatter).sum(0) / weight.sum()
    size = np.abs(y).max(0)
    # Targets that are constant but for rounding keep the scale 1.
    scale = np.where(squares > (1e-12 * size) ** 2, np.sqrt(squares), 1.0)
    return torch.from_numpy(scale), torch.from_numpy(np.asarray(shift))


def _robust_standardisation(y: NDArray[np.float64], normalize_y: bool, centre: bool) -> tuple[Tensor, Tensor]:
    """Median and the spread of the middle half, in deviations of a normal density: outliers move neither."""
    outputs = y.shape[1]
    if not normalize_y:
        return torch.ones(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64)
    shift = np.median(y, axis=0) if centre else np.zeros(outputs)
    scale = typical_spread(torch.from_numpy(y - shift))
    return scale, torch.from_numpy(shift)


def _mean(mean: str, points: Tensor, centre: float = 0.0) -> Mean:
    """The mean function, which starts at the constant `centre`, and with "zero" stays there."""
    if mean == "zero" and centre == 0:
        return ZeroMean()
    if mean in ("zero", "constant"):
        constant = ConstantMean()
        constant.initialize(raw_constant=float(centre))
        return constant.requires_grad_(mean == "constant")
    if mean == "linear":
        trend = LinearTrend(points)
        with torch.no_grad():
            trend.bias.data.fill_(centre)
        return trend
    raise ValueError(f"mean must be 'zero', 'constant' or 'linear', not {mean!r}.")


def _observed(observation: object, width: int, scale: TargetScale) -> tuple[Observations, float | None]:
    """An observation of another functional in standardised units, and its noise variance as given."""
    if (
        not isinstance(observation, tuple | list)
        or len(observation) != 4
        or not isinstance(observation[0], Functional)
    ):
        raise ValueError("An observation is (functional, inputs, targets, noise variance or None).")
    functional, inputs, targets, noise = observation
    x = check_rows(inputs, width, "The inputs of an observation")
    y = torch.from_numpy(check_numbers(targets, "The targets of an observation", ensure_2d=False))
    if noise is not None:
        check_variance(noise, "The noise of an observation")
    functional = copy.deepcopy(functional).double()
    total, outputs = constant_part(functional, x), len(scale.scale)
    if y.numel() != len(total) * outputs or len(y) not in (len(x), len(total)):
        raise ValueError(
            f"Inputs of shape {tuple(x.shape)} make {len(total)} rows of {type(functional).__name__}, "
            f"each with {outputs} targets, but targets of shape {tuple(y.shape)} were given."
        )
    y = (y.reshape(len(total), outputs) - total[:, None] * scale.shift) / scale.scale
    return Observations(functional, x, y), noise


def check_variance(value: object, name: str) -> None:
    """Raise a ValueError unless `value` is a finite number of at least 0."""
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(
            f"{name} must be a finite variance of at least 0, or None to learn it, not {value!r}."
        )
