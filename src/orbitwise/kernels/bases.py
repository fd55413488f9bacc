"""Base kernels that a spelling may name, the constraints of their hyperparameters, and initial values.

Positive hyperparameters are represented by their logarithms. Initial values come from the inputs and targets;
so do those of the default kernel and of a linear mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict, Unpack, final, overload

import numpy as np
import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import (
    AdditiveKernel,
    ArcKernel,
    ConstantKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.means import Mean
from gpytorch.priors import LogNormalPrior, Prior
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.distributions import Distribution

from orbitwise.declarations import SMALLEST, Stored, is_plain_numbers, require
from orbitwise.kernels.spectrum import Array, mixture_of_column, spectral_peaks


def log_positive(initial_value: float | None = None) -> Positive:
    """A positivity constraint by exponentials, with which learning does not depend on the scale."""
    exp: Callable[[Tensor], Tensor] = torch.exp
    return Positive(exp, torch.log, initial_value)  # pyright: ignore[reportArgumentType]


class KernelArguments(TypedDict, total=False):
    """Arguments that every kernel of GPyTorch takes."""

    batch_shape: torch.Size | None
    active_dims: tuple[int, ...] | None
    eps: float


@final
class LogScale:
    """A positive hyperparameter of a kernel, learned on a logarithmic scale as its parameter `raw_<name>`.

    As an attribute of the class, it gets and sets the value; setting takes one number for all entries, or one
    for each.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, kernel: None, owner: type[Kernel]) -> LogScale: ...

    @overload
    def __get__(self, kernel: Kernel, owner: type[Kernel]) -> Tensor: ...

    def __get__(self, kernel: Kernel | None, owner: type[Kernel]) -> LogScale | Tensor:
        if kernel is None:
            return self
        return getattr(kernel, f"raw_{self.name}_constraint").transform(getattr(kernel, f"raw_{self.name}"))

    def __set__(self, kernel: Kernel, value: Tensor | float) -> None:
        raw = getattr(kernel, f"raw_{self.name}")
        values = torch.as_tensor(value, dtype=raw.dtype, device=raw.device)
        values = values.reshape(raw.shape) if values.numel() == raw.numel() else values.expand(raw.shape)
        constraint = getattr(kernel, f"raw_{self.name}_constraint")
        kernel.initialize(**{f"raw_{self.name}": constraint.inverse_transform(values)})

    def register(
        self,
        kernel: Kernel,
        shape: Sequence[int],
        constraint: Interval | None = None,
        prior: Distribution | None = None,
    ) -> None:
        """Register the parameter with a kernel, optionally with another constraint and a prior."""
        kernel.register_parameter(f"raw_{self.name}", nn.Parameter(torch.zeros(*shape)))
        kernel.register_constraint(f"raw_{self.name}", log_positive() if constraint is None else constraint)
        if prior is not None:
            if not isinstance(prior, Prior):
                raise TypeError(f"{self.name}_prior must be a gpytorch Prior, not {type(prior).__name__}.")
            kernel.register_prior(f"{self.name}_prior", prior, self.name)


@final
class CentredLinearKernel(Kernel):
    """variance · (x - centre)ᵀ(x′ - centre): lines that are zero at a learned centre.

    `centre` has `ard_num_dims` entries, or one for all columns. Multiplied by a periodic kernel, `centre` is
    the time at which the amplitude of a growing cycle was zero.

    Parameters
    ----------
    ard_num_dims : int, default=None
        The number of columns that have a centre of their own; None shares one.
    variance_constraint : gpytorch.constraints.Interval, default=None
        A constraint other than positivity by exponentials.
    **arguments
        `batch_shape`, `active_dims` and `eps` of a GPyTorch kernel.
    """

    has_lengthscale = False
    centre: nn.Parameter
    raw_variance: nn.Parameter
    variance: LogScale = LogScale("variance")
    """The variance of the slope."""

    def __init__(
        self,
        ard_num_dims: int | None = None,
        variance_constraint: Interval | None = None,
        **arguments: Unpack[KernelArguments],
    ) -> None:
        super().__init__(ard_num_dims=ard_num_dims, **arguments)
        CentredLinearKernel.variance.register(self, (*self.batch_shape, 1, 1), variance_constraint)
        centre = torch.zeros(*self.batch_shape, 1, ard_num_dims or 1)
        self.register_parameter("centre", nn.Parameter(centre))

    @property
    def is_stationary(self) -> bool:
        return False

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: object
    ) -> Tensor:
        if last_dim_is_batch:
            raise ValueError("CentredLinearKernel does not take last_dim_is_batch.")
        left, right = x1 - self.centre.to(x1), x2 - self.centre.to(x2)
        variance = self.variance.to(x1)
        if diag:
            return variance[..., 0] * (left * right).sum(-1)
        # σ² (x - c)ᵀ(x′ - c)
        return variance * (left @ right.mT)


class Option(NamedTuple):
    """A whole number that a base kernel takes in brackets."""

    name: str
    default: int
    least: int
    most: int


@final
@dataclass(frozen=True)
class Base:
    """A base kernel.

    `positive` names its positive hyperparameters, and `free` those of any sign. `settings` are arguments that
    are implied by the name. `amplitude` names the hyperparameter that scales the kernel, if it has one.
    `takes_ard` is whether it can have one lengthscale per column, and `needs_width` whether it needs to know
    the number of columns.
    """

    kind: type[Kernel]
    about: str
    positive: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    settings: Mapping[str, float] = field(default_factory=dict)
    option: Option | None = None
    amplitude: str | None = None
    takes_ard: bool = True
    needs_width: bool = False
    build: Callable[..., Kernel] | None = None

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """All hyperparameters that may be given in brackets."""
        return (*self.positive, *self.free)

    def make(
        self, num_columns: int | None, is_ard: bool, option: int | None, columns: tuple[int, ...] | None
    ) -> Kernel:
        """The kernel for a number of columns, with constraints by exponentials."""
        arguments: dict[str, Any] = dict(self.settings)
        if self.option is not None:
            arguments[self.option.name] = self.option.default if option is None else option
        arguments |= {f"{name}_constraint": log_positive() for name in self.positive}
        if columns is not None:
            arguments["active_dims"] = columns
        if self.needs_width or (is_ard and self.takes_ard):
            arguments["ard_num_dims"] = num_columns
        return (self.kind if self.build is None else self.build)(**arguments)


def _arc(
    lengthscale_constraint: Interval,
    ard_num_dims: int | None = None,
    active_dims: tuple[int, ...] | None = None,
) -> Kernel:
    kernel = ArcKernel(MaternKernel(nu=2.5), ard_num_dims=ard_num_dims, active_dims=active_dims)
    kernel.register_constraint("raw_lengthscale", lengthscale_constraint)
    return kernel


LENGTH = ("lengthscale",)
MIXTURE = ("mixture_scales", "mixture_means", "mixture_weights")

BASES: dict[str, Base] = {
    "arc": Base(
        ArcKernel, "points on an arc, for columns between 0 and 1", LENGTH, build=_arc, needs_width=True
    ),
    "constant": Base(ConstantKernel, "a constant", ("constant",), amplitude="constant", takes_ard=False),
    "cosine": Base(CosineKernel, "one pure wave", ("period_length",), takes_ard=False),
    "dot": Base(
        LinearKernel, "lines through the origin", ("variance",), amplitude="variance", takes_ard=False
    ),
    "linear": Base(
        CentredLinearKernel,
        "lines about a learned centre",
        ("variance",),
        ("centre",),
        amplitude="variance",
        needs_width=True,
    ),
    "matern12": Base(MaternKernel, "rough", LENGTH, settings={"nu": 0.5}),
    "matern32": Base(MaternKernel, "once differentiable", LENGTH, settings={"nu": 1.5}),
    "matern52": Base(MaternKernel, "twice differentiable", LENGTH, settings={"nu": 2.5}),
    "periodic": Base(PeriodicKernel, "repeats itself exactly", (*LENGTH, "period_length")),
    "piecewise": Base(
        PiecewisePolynomialKernel, "smooth, of compact support", LENGTH, option=Option("q", 2, 0, 3)
    ),
    "polynomial": Base(
        PolynomialKernel, "a polynomial", ("offset",), option=Option("power", 2, 1, 20), takes_ard=False
    ),
    "rbf": Base(RBFKernel, "smooth", LENGTH),
    "rq": Base(RQKernel, "smooth at many scales", (*LENGTH, "alpha")),
    "sm": Base(
        SpectralMixtureKernel,
        "a spectral mixture",
        MIXTURE,
        option=Option("num_mixtures", 4, 1, 100),
        amplitude="mixture_weights",
        needs_width=True,
    ),
}
ALIASES = {
    "const": "constant",
    "cos": "cosine",
    "exponential": "matern12",
    "lin": "linear",
    "ou": "matern12",
    "per": "periodic",
    "poly": "polynomial",
    "rational_quadratic": "rq",
    "se": "rbf",
    "spectral_mixture": "sm",
    "squared_exponential": "rbf",
}


def name_of(kernel: Kernel) -> tuple[str, int | None]:
    """The name and the option of a base kernel; a ValueError if it is not in the table."""
    for name, base in BASES.items():
        settings_fit = all(getattr(kernel, key, None) == value for key, value in base.settings.items())
        if type(kernel) is base.kind and settings_fit:
            return name, None if base.option is None else int(getattr(kernel, base.option.name))
    raise ValueError(
        f"{type(kernel).__name__} has no spelling; known are {', '.join(BASES)}, their sums and products."
    )


def columns_of(kernel: Kernel) -> tuple[int, ...] | None:
    """The columns that a kernel sees; None for all."""
    return tuple(kernel.active_dims.tolist()) if isinstance(kernel.active_dims, Tensor) else None


def children_of(kernel: AdditiveKernel | ProductKernel) -> list[Kernel]:
    """The summands or factors of a kernel."""
    return [part for part in kernel.kernels if isinstance(part, Kernel)]


SPREADS = (1.0, 0.2, 4.0, 0.05)
"""Initial lengthscales of the first, second, … kernel with the same columns, in spreads of inputs."""

NUM_PEAKS = 4


def start(
    kernel: Kernel,
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    *,
    normalize_y: bool = True,
    seed: int | None = None,
) -> Kernel:
    """Set the learned hyperparameters of a kernel from data, and return the kernel.

    With `normalize_y`, amplitudes are those of standardised targets, as in `InvariantGPRegressor`. A `seed`
    draws a random start around the usual one, for restarts.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        A kernel that `parse` or GPyTorch made of base kernels, sums, products and scales; it is changed.
    x : array-like of shape (n,) or (n, d)
        Inputs: their spread gives lengthscales, their spectrum periods.
    y : array-like of shape (n,)
        Targets: their variance is shared out among the summands.
    normalize_y : bool, default=True
        Whether amplitudes refer to standardised targets.
    seed : int, default=None
        Draws a start around the usual one.
    """
    columns, targets = _as_columns(x), _as_vector(y)
    variance = 1.0 if normalize_y else max(float(np.var(targets)), 1e-12)
    random = None if seed is None else np.random.default_rng(seed)
    _Start(columns, targets, variance, random).set(kernel, 1.0)
    return kernel


def spectral_mixture(
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    num_mixtures: int = 8,
    seed: int | None = None,
    normalize_y: bool = True,
) -> SpectralMixtureKernel:
    """A spectral mixture kernel that starts from the spectrum of the data, column by column.

    The first component is the trend, at frequency 0 and as wide as the range of x allows. The others are at
    the strongest lines, with the variance that each explains and the width that the range of x resolves.
    GPyTorch's own starts draw frequencies at random (`initialize_from_data`), or need an even grid
    (`initialize_from_data_empspect`). With `normalize_y` the weights are those of standardised targets, as
    `InvariantGPRegressor` takes them. A `seed` moves the start at random, for restarts. x is [n] or [n, d].

    Parameters
    ----------
    x : array-like of shape (n,) or (n, d)
        Inputs, evenly spaced or not.
    y : array-like of shape (n,)
        Targets.
    num_mixtures : int, default=8
        Components, the trend included.
    seed : int, default=None
        Moves the start at random.
    normalize_y : bool, default=True
        Whether weights refer to standardised targets.
    """
    columns, targets = _as_columns(x), _as_vector(y)
    if len(columns) != len(targets):
        raise ValueError(f"x has {len(columns)} rows and y has {len(targets)}.")
    if num_mixtures < 1:
        raise ValueError(f"num_mixtures must be at least 1, not {num_mixtures}.")
    kernel = BASES["sm"].make(columns.shape[1], False, num_mixtures, None).double()
    assert isinstance(kernel, SpectralMixtureKernel)
    _set_mixture(kernel, columns, targets, seed, normalize_y)
    return kernel


def _set_mixture(
    kernel: SpectralMixtureKernel, x: Array, y: Array, seed: int | None, normalize_y: bool
) -> None:
    """Give a spectral mixture kernel the start of `spectral_mixture`; x has the columns that it sees."""
    of_columns = [mixture_of_column(column, y, kernel.num_mixtures) for column in x.T]
    # [mixtures, columns]
    means, scales, weights = (np.stack(each, 1) for each in zip(*of_columns, strict=True))
    if seed is not None:
        random = np.random.default_rng(seed)
        means *= np.exp(0.02 * random.standard_normal(means.shape))
        scales *= np.exp(random.standard_normal(scales.shape))
        weights *= np.exp(random.standard_normal(weights.shape))
    weights /= weights.sum(0)
    total = 1.0 if normalize_y else max(float(np.var(y)), 1e-12)
    # GPyTorch multiplies the mixtures of the columns, all with the same weights.
    kernel.mixture_weights = torch.from_numpy(weights.mean(1) * total ** (1.0 / x.shape[1]))
    kernel.mixture_means = torch.from_numpy(means[:, None, :].copy())
    kernel.mixture_scales = torch.from_numpy(scales[:, None, :].copy())


@final
class _Start:
    """Initial values of a kernel; kernels of each kind are counted, so that equal ones differ."""

    def __init__(self, x: Array, y: Array, variance: float, random: np.random.Generator | None) -> None:
        self.x, self.y, self.variance, self.random = x, y, variance, random
        self.met: dict[tuple[str | int, ...], int] = defaultdict(int)
        self.periods: dict[int, Array] = {}

    def set(self, kernel: Kernel, share: float) -> None:
        """Set a kernel that explains this share of the variance of the targets."""
        if type(kernel) is ScaleKernel:
            self._put(kernel, "outputscale", self.variance * share / self._size(kernel.base_kernel), 1.0)
            self.set(kernel.base_kernel, 1.0)
        elif type(kernel) is AdditiveKernel:
            for part in children_of(kernel):
                self.set(part, share / len(kernel.kernels))
        elif type(kernel) is ProductKernel:
            for part in children_of(kernel):
                self.set(part, share)
        else:
            self._set_base(kernel, share)

    def _set_base(self, kernel: Kernel, share: float) -> None:
        name, _ = name_of(kernel)
        columns = columns_of(kernel) or tuple(range(self.x.shape[1]))
        x = self.x[:, columns]
        spread = typical_spread(torch.tensor(x)).numpy()
        place = self.met[name, *columns]
        self.met[name, *columns] += 1
        if isinstance(kernel, SpectralMixtureKernel):
            seed = None if self.random is None else int(self.random.integers(2**31))
            _set_mixture(kernel, x, self.y, seed, self.variance == 1.0)
            return
        if name in ("periodic", "cosine"):
            periods = np.array([self._period(column, place) for column in columns])
            # GPyTorch's cosine repeats itself after twice its period
            self._put(kernel, "period_length", periods / (2.0 if name == "cosine" else 1.0))
            if name == "periodic":
                self._put(kernel, "lengthscale", np.ones(len(columns)), 0.7)
        elif kernel.has_lengthscale:
            length = spread * (SPREADS[place % len(SPREADS)] * len(columns) ** 0.5)
            self._put(kernel, "lengthscale", length, 1.2)
        if name == "rq":
            self._put(kernel, "alpha", 1.0, 1.0)
        if isinstance(kernel, CentredLinearKernel):
            moved = 0.0 if self.random is None else spread * self.random.standard_normal(len(spread))
            kernel.initialize(centre=_like(kernel.centre, _fit_size(kernel.centre, x.mean(0) + moved)))
        if name in ("linear", "dot"):
            size = float((spread**2).sum()) if name == "linear" else float((x**2).sum(1).mean())
            self._put(kernel, "variance", self.variance * share / max(size, 1e-300), 1.0)
        if name == "constant":
            self._put(kernel, "constant", self.variance * share, 1.0)
        if name == "polynomial":
            self._put(kernel, "offset", float((x**2).sum(1).mean()) or 1.0)

    def _put(self, kernel: Kernel, name: str, value: float | Array, deviation: float | None = None) -> None:
        """Set a learned hyperparameter; a random start perturbs its logarithm with this deviation."""
        raw = getattr(kernel, f"raw_{name}")
        values = _fit_size(raw, np.atleast_1d(value))
        if deviation is not None and self.random is not None:
            values = values * np.exp(deviation * self.random.standard_normal(len(values)))
        if raw.requires_grad:
            setattr(kernel, name, _like(raw, values))

    def _period(self, column: int, place: int) -> float:
        if column not in self.periods:
            frequencies = spectral_peaks(self.x[:, column], self.y, NUM_PEAKS).frequencies
            extent = float(np.ptp(self.x[:, column])) or 1.0
            self.periods[column] = 1.0 / frequencies if len(frequencies) else np.array([extent / 3])
        periods = self.periods[column]
        if self.random is None:
            return float(periods[place % len(periods)])
        # stronger lines more often; a line may be a harmonic of the cycle
        chance = 0.5 ** np.arange(len(periods))
        period = self.random.choice(periods, p=chance / chance.sum()) * self.random.choice([1.0, 1.0, 2.0])
        return float(period * np.exp(0.03 * self.random.standard_normal()))

    def _size(self, kernel: Kernel) -> float:
        """The mean of k(x, x) of an unscaled kernel: 1, except for polynomials."""
        if isinstance(kernel, PolynomialKernel):
            squares = (self.x**2).sum(1)
            return float(((squares + squares.mean()) ** kernel.power).mean()) or 1.0
        return 1.0


def _as_columns(x: ArrayLike | Tensor) -> Array:
    """Finite inputs as a matrix [n, d]."""
    array = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or not len(array) or not np.isfinite(array).all():
        raise ValueError(f"x must be finite numbers [n] or [n, d], not shape {array.shape} or with NaN.")
    return array


def _as_vector(y: ArrayLike | Tensor) -> Array:
    """Finite targets as a vector [n]."""
    array = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y, dtype=np.float64)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError(f"y must be finite numbers [n], not shape {array.shape} or with NaN.")
    return array


def _fit_size(tensor: Tensor, values: Array) -> Array:
    """One value per entry, or for a single entry their geometric mean (the mean if signs differ)."""
    if tensor.numel() == len(values):
        return values
    return np.array([np.exp(np.log(values).mean()) if (values > 0).all() else values.mean()])


def _like(raw: Tensor, values: Array) -> Tensor:
    return torch.from_numpy(values).to(raw).expand(raw.numel()).reshape(raw.shape).clone()


QUARTILES = 0.7413
"""The standard deviation of a normal distribution, divided by its interquartile range."""
APART = 10.0
"""If the standard deviation exceeds the one from the quartiles by this factor, a few rows are far from the
others."""
FEW = 0.1
"""The share of rows up to which rows so far from the others are few."""


@final
class LinearTrend(Mean):
    """The mean function b + wᵀ(x - centre)/spread, with learned b (`bias`) and w (`weights`).

    Centre and spread are those of the points. So w has the size of the targets, whatever the units of the
    points, and steps of one size suit all parameters.
    """

    centre: Tensor
    spread: Tensor

    stored = Stored(build="about")

    def __init__(self, points: Float[Tensor, "n d"]) -> None:
        super().__init__()
        self.register_buffer("centre", points.mean(0))
        self.register_buffer("spread", typical_spread(points))
        self.weights = nn.Parameter(torch.zeros_like(points[0]))
        self.bias = nn.Parameter(torch.zeros_like(points[0, 0]))

    @classmethod
    def about(cls, centre: Float[Tensor, " d"]) -> LinearTrend:
        """A trend about a point, whose spread is set later."""
        return cls(centre.reshape(1, -1))

    def check_parts(self) -> None:
        """Raise a ValueError where a spread is not positive."""
        require(is_plain_numbers(self.spread, SMALLEST), "a spread that is not positive")

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n"]:
        return (x - self.centre) / self.spread @ self.weights + self.bias


def default_kernel(
    points: Float[Tensor, "n d"],
    separate_lengthscales: bool,
    variance: float = 1.0,
    deviation: float | None = None,
) -> Kernel:
    """A scaled RBF kernel that starts at the data's own scale, with one lengthscale or one per coordinate.

    `variance` is the initial variance of f; the default is that of standardised targets. With a `deviation`,
    that of the logarithm, lengthscales have a log-normal hyperprior whose mode is √d times the spread of the
    coordinate, of d coordinates that vary.
    """
    num_lengthscales = points.shape[-1] if separate_lengthscales else None
    start, prior = typical_distance(points, separate_lengthscales), None
    if deviation is not None:
        # constant columns do not matter
        mode = start * (_varies(points).sum().clamp_min(1) / points.shape[-1]).sqrt()
        # log N(log ℓ; m + s², s²) - log ℓ = -½ (log ℓ - m)²/s² + constant
        prior = LogNormalPrior(mode.log() + deviation**2, torch.full_like(mode, deviation))
    base = RBFKernel(num_lengthscales, lengthscale_prior=prior, lengthscale_constraint=log_positive())
    kernel = ScaleKernel(base, outputscale_constraint=log_positive()).to(points)
    base.lengthscale = start
    kernel.outputscale = variance
    return kernel


def typical_distance(points: Float[Tensor, "n d"], separate: bool) -> Tensor:
    """An initial lengthscale: √d times the spread of each coordinate, or of all together."""
    width = points.shape[-1]
    return (
        typical_spread(points if separate else (points - points.mean(0)).reshape(-1, 1))[None, :] * width**0.5
    )


def deviations(points: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """The standard deviation of each coordinate, computed in units that avoid underflow and overflow.

    The units are powers of two, so that they do not affect rounding.
    """
    unit = torch.exp2(torch.frexp(points.abs().amax(0)).exponent.to(points))
    return (points / unit).std(0, correction=0) * unit


def _quartiles(points: Float[Tensor, "n d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    ordered = points.sort(0).values
    return ordered[len(points) // 4], ordered[(3 * len(points)) // 4]


def typical_spread(points: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """The standard deviation of each coordinate, 1 where it varies by no more than rounding.

    If a few rows are far from all others, such as rows of 999 for missing values, they are left out.
    """
    spread = deviations(points)
    low, high = _quartiles(points)
    middle = (high - low) * QUARTILES
    is_far = (points - points.median(0).values).abs() > APART * middle
    is_few = is_far.to(points).mean(0) <= FEW
    spread = torch.where((middle > 0) & (spread > APART * middle) & is_few, middle, spread)
    return torch.where(_varies(points, spread), spread, torch.ones_like(spread))


def _varies(points: Float[Tensor, "n d"], spread: Tensor | None = None) -> Bool[Tensor, " d"]:
    """Whether each coordinate varies by more than rounding."""
    rounding = 64 * torch.finfo(points.dtype).eps * points.abs().amax(0)
    return (deviations(points) if spread is None else spread) > rounding
