"""The model behind the regressors: standardised targets, rows of all observations, and their evidence.

Rows of equal inputs are merged without loss: a Gaussian needs only their mean, weight and scatter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean, Mean, ZeroMean
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from orbitwise.declarations import COUNT, POSITIVE, Field, Stored
from orbitwise.estimators.validation import check_numbers, check_rows, check_variance
from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.gradients import Gradients
from orbitwise.inference import exact
from orbitwise.inference.defaults import LinearTrend, default_kernel, typical_spread
from orbitwise.inference.optimise.training import log_prior
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Process, Rows


class Replicates(NamedTuple):
    """Distinct inputs in a fixed order, with mean, weight and scatter of the targets seen there."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    weight: NDArray[np.float64]
    scatter: NDArray[np.float64]

    def log_factor(self, noise: Tensor) -> Tensor:
        """What merging takes out of the log likelihood, for the noise variance σ²."""
        if bool((self.weight == 1).all()):
            return torch.zeros_like(noise)
        outputs = self.y.shape[1]
        extra = float((self.weight - 1).sum())
        constant = -0.5 * outputs * (extra * math.log(2 * math.pi) + float(np.log(self.weight).sum()))
        return constant - 0.5 * outputs * extra * torch.log(noise) - 0.5 * float(self.scatter.sum()) / noise

    def without_noise(self) -> Replicates:
        """The same rows for noiseless targets: repeating one says nothing new, so it counts once."""
        rounding = self.weight[:, None] * (1e-12 * np.abs(self.y)) ** 2
        if bool((self.scatter > rounding).any()):
            raise ValueError(
                "noise=0 says that targets are exact, but equal inputs have different targets; "
                "give a positive noise, or None to learn it."
            )
        return self._replace(weight=np.ones_like(self.weight), scatter=np.zeros_like(self.scatter))


def merge(x: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64]) -> Replicates:
    """Merge rows with equal inputs; rows of weight zero are left out."""
    kept = weight > 0
    if not kept.any():
        raise ValueError("All sample weights are zero: at least one row needs a positive weight.")
    x, y, weight = x[kept], y[kept], weight[kept]
    distinct, place = np.unique(x, axis=0, return_inverse=True)
    place = place.ravel()
    # A fixed order of summation within equal inputs, so that the order of rows leaves no trace in rounding.
    order = np.lexsort((weight, *y.T, place))
    x, y, weight, place = x[order], y[order], weight[order], place[order]

    def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Σ w over the rows of each input, for every column."""
        columns = [np.bincount(place, weight * column, len(distinct)) for column in values.T]
        return np.stack(columns, axis=1).astype(np.float64)

    total = sums(np.ones_like(y[:, :1]))
    mean = sums(y) / total
    return Replicates(distinct, mean, total[:, 0], sums((y - mean[place]) ** 2))


Observation = tuple[Functional, ArrayLike, ArrayLike, float | None]
NOISE_FLOOR = 1e-8
NOISE_START = 0.05


@final
class TargetScale(NamedTuple):
    """How targets were standardised: y = scale·f + shift per output, and whether y was given as a vector."""

    shift: Tensor
    scale: Tensor
    is_vector: bool = False

    stored = Stored({"scale": POSITIVE})

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


class Extra(NamedTuple):
    """An observation of another functional in standardised units, with the mean square of its targets."""

    functional: Functional
    x: Tensor
    targets: Tensor
    noise: Tensor | None
    size: float


@final
class RegressionModel(nn.Module):
    """y = scale·(L g) + shift + noise for merged rows, and observations of other functionals of f.

    `likelihood` is another one than Gaussian noise, and None where that is learned here.
    """

    stored = Stored({"raw_noise": Field(read="raw_noise.0"), "width": COUNT}, build="of_no_rows")

    def __init__(
        self,
        replicates: Replicates,
        functional: Functional,
        process: Process,
        noise: float | None,
        scale: Tensor,
        shift: Tensor,
        extras: Sequence[Extra],
        likelihood: Likelihood | None = None,
    ) -> None:
        super().__init__()
        self.functional = functional
        self.process = process
        self.scale, self.shift = scale, shift
        self.replicates = replicates
        self.extras = list(extras)
        self.x = torch.from_numpy(replicates.x)
        self.weight = torch.from_numpy(replicates.weight)
        targets = (torch.from_numpy(replicates.y) - shift) / scale
        self.targets = torch.cat([targets, *(extra.targets for extra in extras)])
        learned = [
            NOISE_START if noise is None else None,
            *(None if e.noise is not None else NOISE_START for e in extras),
        ]
        self.fixed_noise = None if noise is None else noise / scale.square()
        self.raw_noise = nn.ParameterList(
            nn.Parameter(
                torch.tensor(np.log(start or 1.0), dtype=torch.float64), requires_grad=start is not None
            )
            for start in learned
        )
        self.likelihood = likelihood

    @classmethod
    def of_no_rows(
        cls,
        functional: Functional,
        process: Process,
        scale: Float[Tensor, " c"],
        shift: Float[Tensor, " c"],
        fixed_noise: Float[Tensor, " k"] | None,
        raw_noise: Float[Tensor, ""],
        width: int,
        likelihood: Likelihood | None = None,
    ) -> RegressionModel:
        """A model of no rows: it knows its noise, and a later fit resumes from it."""
        none = np.zeros((0, len(scale)))
        replicates = Replicates(np.zeros((0, width)), none, np.zeros(0), none)
        noise = None if fixed_noise is None else 1.0
        model = cls(replicates, functional, process, noise, scale, shift, [], likelihood)
        model.fixed_noise = fixed_noise
        model.raw_noise[0].data = raw_noise
        return model

    @property
    def width(self) -> int:
        """The number of columns of the inputs."""
        return self.x.shape[1]

    def noise(self) -> Tensor:
        """The noise variance of one standardised target, in one entry (or one for each output, if fixed)."""
        if self.fixed_noise is not None:
            return self.fixed_noise
        return (self.raw_noise[0].exp() + NOISE_FLOOR).reshape(1)

    def rows(self, functional: Functional | None = None, precision: torch.dtype = torch.float64) -> Rows:
        """The atoms of all observations, lowered afresh (learnable orbits move them).

        `functional` stands for the model's own where it is given, say on other nodes.
        """
        functional = self.functional if functional is None else functional
        return [
            functional.atoms(self.x.to(precision)),
            *((extra.functional @ functional).atoms(extra.x.to(precision)) for extra in self.extras),
        ]

    def row_noise(self) -> Tensor:
        """The noise variance of every row."""
        extras = zip(self.extra_noise(), self.extras, strict=True)
        return torch.cat(
            [self.noise()[0] / self.weight, *(noise.expand(len(e.targets)) for noise, e in extras)]
        )

    def extra_noise(self) -> list[Tensor]:
        """The noise variance of each observation of another functional, standardised."""
        return [
            extra.size * (raw.exp() + NOISE_FLOOR) if extra.noise is None else extra.noise
            for raw, extra in zip(list(self.raw_noise)[1:], self.extras, strict=True)
        ]

    def objective(
        self, functional: Functional | None = None, precision: torch.dtype = torch.float64
    ) -> Tensor:
        """Log evidence of the standardised targets plus log hyperpriors; see `rows`."""
        rows = self.rows(functional, precision)
        terms = exact.evidence(self.process, rows, self.targets, self.row_noise())
        return terms.value + self._merged() + log_prior(self.process)

    @torch.no_grad()
    def evidence(self, posterior: exact.ExactPosterior | None = None) -> EvidenceTerms:
        """The evidence of the targets as given: merging is undone, and standardising by its Jacobian."""
        terms = (self.posterior() if posterior is None else posterior).evidence()
        count = float(self.weight.sum()) + sum(len(extra.targets) for extra in self.extras)
        value = float(terms.value + self._merged()) - count * float(self.scale.log().sum())
        scatter = float(self._scatter().sum())
        # -½ (y-m)ᵀ(K+Σ)⁻¹(y-m) of all rows: that of the means, and the scatter around them
        fit = float(terms.fit) - (0.5 * scatter / float(self.noise()[0]) if scatter else 0.0)
        constant = -0.5 * count * len(self.scale) * math.log(2 * math.pi)
        return EvidenceTerms(value, fit, value - fit - constant, constant, terms.jitter)

    def posterior(self, functional: Functional | None = None) -> exact.ExactPosterior:
        """The posterior of g at the present hyperparameters; see `rows`."""
        return exact.condition(self.process, self.rows(functional), self.targets, self.row_noise())

    def merged_rows(self) -> Replicates:
        """The replicates with scatter in standardised units."""
        return self.replicates._replace(scatter=self._scatter())

    def _merged(self) -> Tensor:
        return self.merged_rows().log_factor(self.noise()[0])

    def _scatter(self) -> NDArray[np.float64]:
        return self.replicates.scatter / self.scale.square().numpy()


def prepare(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    weight: NDArray[np.float64],
    functional: Functional,
    kernel: Kernel | None,
    noise: float | None,
    mean: str,
    normalize_y: bool,
    one_sided: Any,
    observations: Sequence[Any],
    is_image: bool = False,
    likelihood: Likelihood | None = None,
) -> RegressionModel:
    """A model ready to be trained, from validated data and the arguments of an estimator."""
    replicates = merge(x, y, weight) if noise != 0 else merge(x, y, weight).without_noise()
    functional = functional.double()
    points = torch.from_numpy(replicates.x)
    with torch.no_grad():
        atoms = functional.atoms(points)
    exact.refuse_drawn(atoms)
    if atoms.num_rows != len(points):
        raise ValueError(
            f"invariance must make one row of each input; {type(functional).__name__} makes several."
        )
    total = _constant_part(atoms)
    keeps_constants = bool(total[0].abs() > 1e-12) and torch.allclose(total, total[0].expand_as(total))
    centre = 0.0
    if likelihood is None or (likelihood.is_additive and not likelihood.has_heavy_tails):
        scale, shift = _standardisation(replicates, normalize_y, keeps_constants)
    elif likelihood.is_additive:
        scale, shift = _robust_standardisation(y, normalize_y, keeps_constants)
    else:
        scale, shift = _standardisation(replicates, False, False)
        centre = likelihood.prior_mean(torch.from_numpy(y)) if normalize_y else 0.0
    if kernel is None:
        # pixels share a lengthscale, as they do under every invariance of images
        separate = functional.is_identity and not is_image
        base = default_kernel(atoms.points[:, 0], separate)
    else:
        base = copy.deepcopy(kernel).double()
    process = Process(_mean(mean, atoms.points.flatten(0, 1), centre), base, one_sided).double()
    try:
        process.variance(atoms.rows(slice(0, 1)))
    except (IndexError, RuntimeError) as error:
        raise ValueError(f"kernel does not take points of width {atoms.points.shape[-1]}: {error}") from error
    extras = [_extra(observation, x.shape[1], scale, shift) for observation in observations]
    if len(scale.unique()) > 1 and (noise is not None or any(extra.noise is not None for extra in extras)):
        raise ValueError(
            "A fixed noise needs targets of one scale: pass normalize_y=False, or fit outputs one by one."
        )
    return RegressionModel(replicates, functional, process, noise, scale, shift, extras, likelihood)


def constant_part(functional: Functional, x: Tensor) -> Tensor:
    """What the functional makes of the constant function 1, for every row."""
    return _constant_part(functional.atoms(x))


def _constant_part(block: Block) -> Tensor:
    if isinstance(block, Gradients):
        return block.points.new_zeros(block.num_rows)
    return (block.weights * (block.order == 0)).sum(-1).detach()


def _standardisation(replicates: Replicates, normalize_y: bool, centre: bool) -> tuple[Tensor, Tensor]:
    outputs = replicates.y.shape[1]
    if not normalize_y:
        return torch.ones(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64)
    weight = replicates.weight[:, None]
    shift = (weight * replicates.y).sum(0) / weight.sum() if centre else np.zeros(outputs)
    squares = (weight * (replicates.y - shift) ** 2 + replicates.scatter).sum(0) / weight.sum()
    size = np.abs(replicates.y).max(0)
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
        with torch.no_grad():
            constant.raw_constant.fill_(centre)
        return constant.requires_grad_(mean == "constant")
    if mean == "linear":
        trend = LinearTrend(points)
        with torch.no_grad():
            trend.bias.fill_(centre)
        return trend
    raise ValueError(f"mean must be 'zero', 'constant' or 'linear', not {mean!r}.")


def _extra(observation: Any, width: int, scale: Tensor, shift: Tensor) -> Extra:
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
        noise = torch.tensor(float(noise), dtype=torch.float64) / scale[0] ** 2
    functional = copy.deepcopy(functional).double()
    total = constant_part(functional, x)
    if y.numel() != len(total) * len(scale) or len(y) not in (len(x), len(total)):
        raise ValueError(
            f"Inputs of shape {tuple(x.shape)} make {len(total)} rows of {type(functional).__name__}, "
            f"each with {len(scale)} targets, but targets of shape {tuple(y.shape)} were given."
        )
    y = (y.reshape(len(total), len(scale)) - total[:, None] * shift) / scale
    return Extra(functional, x, y, noise, float(y.square().mean()) or 1.0)
