"""AutoGPRegressor: a Gaussian process whose kernel and invariances are searched for.

The search sees inputs with mean 0 and standard deviation 1, and dates as decimal years; the result is
described in the units of the data, component by component (Lecture 2.8).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import date
from types import NoneType
from typing import Literal, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from orbitwise.declarations import FLAG, MOST_COUNTED, NUMBER, REPORTED, TEXT, Field, Stored, require
from orbitwise.estimators.convergence import fit_quietly, learning
from orbitwise.estimators.dates import decimal_years
from orbitwise.estimators.engines import engine_for
from orbitwise.estimators.estimator import RegressionPredictions
from orbitwise.estimators.hyperparameters import names_of_columns
from orbitwise.estimators.regression_model import RegressionModel
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.estimators.validation import InputForm, as_array, check_data, check_settings
from orbitwise.functionals.functional import Functional
from orbitwise.inference.exact import ExactPosterior, components
from orbitwise.inference.fit_result import EVIDENCE
from orbitwise.inference.model import Posterior
from orbitwise.kernels.spelling import Expression, Term, build, expression_of, map_terms, summands
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.selection.search.description import Words, component_phrase, summary
from orbitwise.selection.search.greedy import Effort, Fitted, Record, Search, SearchData
from orbitwise.selection.search.hypotheses import (
    KINDS,
    Claim,
    Hypothesis,
    base_terms,
    claims_of,
    functional_of_claims,
    in_input_columns,
    in_process_columns,
    learned_claims,
    without_values,
)
from orbitwise.selection.table import ResultTable

STEPS = {"structure": str, "score": (int, float), "log_likelihood": (int, float), "num_parameters": int}
"""The entries of a row of `history_`, apart from the number of the step."""


@runtime_checkable
class Frame(Protocol):
    """A data frame of any library."""

    columns: Sequence[str]

    def __array__(self) -> NDArray[np.generic]: ...

    def __getitem__(self, name: str) -> ArrayLike: ...

    def assign(self, **columns: ArrayLike) -> Frame: ...


def without_dates(X: ArrayLike | Frame) -> tuple[ArrayLike | Frame, bool]:
    """X with dates converted to decimal years, and whether there were any; other columns do not change."""
    if isinstance(X, Frame):
        dated = {name: decimal_years(X[name]) for name in X.columns if _is_dated(X[name])}
        return (X.assign(**dated) if dated else X), bool(dated)
    if isinstance(X, np.ndarray) and X.dtype.kind == "M":
        return decimal_years(X), True
    if isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.dtype == object):
        array = np.asarray(X, dtype=object)
        if array.ndim == 2 and any(map(_is_dated, array.T)):
            columns = [decimal_years(each) if _is_dated(each) else each for each in array.T]
            return np.stack([np.asarray(each, dtype=np.float64) for each in columns], 1), True
    return X, False


def _is_dated(column: ArrayLike) -> bool:
    """Whether a column holds dates, by its type or by its first entry."""
    if getattr(getattr(column, "dtype", None), "kind", None) == "M":
        return True  # this includes dates with a time zone, which arrays do not have
    first = np.asarray(column)[:1]
    return first.dtype.kind == "M" or any(isinstance(each, date | np.datetime64) for each in first)


POWERS = {
    "lengthscale": 1.0,
    "period_length": 1.0,
    "variance": -2.0,
    "mixture_means": -1.0,
    "mixture_scales": -1.0,
}
"""The power of the scale by which a hyperparameter is multiplied when inputs are scaled back."""

ABOUT_THE_ORIGIN = ("arc", "dot", "polynomial")
"""Kernels that depend on the origin of the inputs: if one of them is searched, inputs are not scaled."""


@final
@dataclass(frozen=True)
class Scaling:
    """u = (x - shift)/scale."""

    shift: float
    scale: float

    @staticmethod
    def of(x: NDArray[np.float64], names: list[str]) -> Scaling:
        """The shift and scale of the inputs; 0 and 1 if a base kernel depends on the origin."""
        if any(name in ABOUT_THE_ORIGIN for name in names):
            return Scaling(0.0, 1.0)
        spread = float(np.sqrt(np.square(x - x.mean(0)).mean()))
        shift = float(x.mean())
        is_constant = spread <= 1e-13 * max(abs(shift), float(np.abs(x).max()))
        return Scaling(shift, 1.0 if is_constant else spread)

    @property
    def inverse(self) -> Scaling:
        """From u back to x: `inverse.undo` converts a hypothesis in units of the data to scaled inputs."""
        return Scaling(-self.shift / self.scale, 1 / self.scale)

    def apply(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scaled inputs."""
        return (x - self.shift) / self.scale

    def undo(self, hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis in the units of the data."""
        claims = tuple(self._claim(claim) for claim in hypothesis.claims)
        return replace(hypothesis, expression=self._expression(hypothesis.expression), claims=claims)

    def scaled_claim(self, claim: Claim) -> Claim:
        """A claim in the units of the data, converted to scaled inputs."""
        return self.inverse._claim(claim)

    def _claim(self, claim: Claim) -> Claim:
        if claim.value is None:
            return claim
        shift = 0.0 if claim.kind == "period" else self.shift
        return replace(claim, value=claim.value * self.scale + shift)

    def _expression(self, expression: Expression) -> Expression:
        def scaled(term: Term) -> Term:
            return replace(
                term, values=tuple((name, self._values(term, name, each)) for name, each in term.values)
            )

        return map_terms(expression, scaled)

    def _values(self, term: Term, name: str, values: tuple[float, ...]) -> tuple[float, ...]:
        if name == "centre":
            return tuple(value * self.scale + self.shift for value in values)
        if term.name == "periodic" and name == "lengthscale":
            return values
        return tuple(value * self.scale ** POWERS.get(name, 0.0) for value in values)


class Component(NamedTuple):
    """One additive part of f: spelling, description, and mean and standard deviation in units of y."""

    spelling: str
    description: str
    mean: NDArray[np.float64]
    std: NDArray[np.float64]


def additive_parts(kernel: Kernel) -> list[Expression]:
    """The additive parts of a kernel with their values, after products of sums are multiplied out."""
    return summands(expression_of(kernel, values=True, digits=17))


@torch.no_grad()
def part_moments(
    parts: Sequence[Expression], num_dims: int, posterior: Posterior, functional: Functional, x: torch.Tensor
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Posterior mean and standard deviation at x of each part of f, in units of standardised targets."""
    if not isinstance(posterior, ExactPosterior):
        raise ValueError("Components need exact inference: fit to at most 1,500 rows, or use `predict` only.")
    kernels = [build(part, num_dims) for part in parts]
    found = components(posterior, functional.atoms(x), kernels)
    # without the constant mean
    return [
        (each.mean[:, 0].numpy(), each.variance.sqrt().numpy()) for each in found if each.kernel is not None
    ]


FEWEST_ROWS = 10


def refitted(
    hypothesis: Hypothesis,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[InvariantGPRegressor, tuple[Claim, ...], bool]:
    """Fit a hypothesis by the regressor, starting from its values, until `is_over`.

    Returns the regressor, the claims with their learned values, and whether time ran out before the fit
    converged.
    """

    def stop(step: int, bound: float) -> None:
        nonlocal is_cut_short
        if is_over():
            is_cut_short = True
            raise KeyboardInterrupt  # the regressor then keeps the best values so far

    # a sparse fit calls `stop` at its first iteration
    is_cut_short = engine_for(len(x)) == "exact" and is_over()
    moved, width = in_process_columns(hypothesis.expression, hypothesis.claims, x.shape[1])
    functional = functional_of_claims(hypothesis.claims, x.shape[1])
    estimator = InvariantGPRegressor(
        build(moved, width),
        None if functional.is_identity else functional,
        likelihood="gaussian" if hypothesis.noise is None else Gaussian(max(hypothesis.noise, 1e-12)),
        mean="zero" if hypothesis.cancels_constants else "constant",
        random_state=0,
        max_iterations=0 if is_cut_short else 200,
        inference=engine_for(len(x)),
        callback=stop,
    )
    # the search reports itself whether the fit converged and whether time ran out
    fit_quietly(estimator, x, y)
    estimator.set_params(callback=None)
    return estimator, learned_claims(hypothesis.claims, estimator.functional_), is_cut_short


@final
class AutoGPRegressor(RegressionPredictions, RegressorMixin, BaseEstimator):
    """Gaussian-process regression that finds its kernel, and the invariances of f.

    A greedy search adds, multiplies and exchanges base kernels and tries invariances, and compares structures
    by evidence. The best structure is fitted to all rows by `InvariantGPRegressor`.

    Parameters
    ----------
    scoring : {"bic", "laplace"}, default="bic"
        The score by which structures are compared. "bic" is the log likelihood minus half the number of
        hyperparameters times the logarithm of the number of rows. "laplace" is the evidence by Laplace's
        approximation over hyperparameters, which takes longer. Both are computed at the mode under the weak
        hyperpriors of `orbitwise.inference.optimise.hyperpriors.weak_hyperpriors`.
    max_depth : int, default=3
        The number of growth steps after the base kernels. Raise it for series with several seasons.
    base_kernels : sequence of str, default=("rbf", "periodic", "linear", "rq")
        Names of base kernels, as in `orbitwise.kernels.parse`. With several columns, each is tried on every
        column, and smooth ones also on all columns together.
    invariances : "auto", None or sequence of str, default="auto"
        Invariances to try: "mirror" (f is even about a learned centre), "odd", "swap" (of two columns),
        "permutation" (of all columns), "period" (f repeats itself exactly). A column is given as in
        "mirror[0]", and a known centre as in "mirror[0](centre=0)". "auto" tries all of them for up to six
        columns, but "permutation" only for up to four, because its orbit has more than a hundred points for
        five.
    max_seconds : float, default=None
        Seconds after which no further evaluation starts, neither in the search nor in the final fit. The best
        structure so far is then used; a ConvergenceWarning and `stopped_` report it. None searches to the
        end, and only then are results the same on every machine.
    search_rows : int, default=300
        The number of rows used in the search. If there are more, this many are drawn at random, the same ones
        for every `random_state`. Then the leading structures are compared on all rows (at most 1,500), the
        best of them is grown further if there are at most 600 rows, and the result is fitted to all rows.
    num_restarts : int, default=2
        The number of starts from the data for each promising structure, in addition to that from its parent.
        The first two do not depend on `random_state`.
    n_jobs : int, default=None
        The number of structures that are fitted at the same time, through joblib. None takes that of
        `joblib.parallel_config`, whose back-ends include Dask clusters.
    random_state : int, RandomState or None, default=None
        Seeds the third and later restarts. With `num_restarts` of at most 2, every seed gives the same model.
    verbose : bool, default=True
        Show progress, on a terminal only.

    Attributes
    ----------
    kernel_ : gpytorch.kernels.Kernel
        The learned kernel of g.
    hyperparameters_ : list of Hyperparameter
        Lengthscales, variances and noise by name, in the units of the data.
    spelling_ : str
        Its structure as text.
    invariance_ : str or None
        The invariances found, as text.
    functional_ : Functional
        L, with f(x) = L_x g.
    score_ : float
        The score of the best structure on the rows on which it was compared.
    log_evidence_ : float
        log p(y) of all rows at the learned hyperparameters, in nats.
    evidence_kind_ : str
        "exact" or "lower bound".
    noise_ : float
        The noise variance.
    mean_ : float
        The constant mean of f.
    posterior_ : Posterior
        The posterior of g.
    stopped_ : str
        "complete", or "time_limit" if time ran out before the search ended.
    history_ : list of dict
        All fits of the search, in order; `table()` shows the best.
    search_rows_ : int
        The number of rows used in the search.
    n_features_in_ : int
        Number of features of a row.

    Examples
    --------
    >>> import numpy as np
    >>> from orbitwise import AutoGPRegressor
    >>> X = np.linspace(0, 10, 60)[:, None]
    >>> y = 2 * X[:, 0] + 0.1 * np.random.default_rng(0).normal(size=60)
    >>> model = AutoGPRegressor(max_depth=0, base_kernels=["linear", "rbf"], invariances=None).fit(X, y)
    >>> model.spelling_
    'linear'
    >>> bool(abs(model.predict([[12.0]])[0] - 24) < 0.5)
    True
    """

    n_features_in_: int
    invariance = None
    image_shape = None
    orbit_ = None
    form_ = InputForm()
    evidence_kind_: str
    inference_: str
    kernel_: Kernel
    log_evidence_: float
    noise_: float
    model_: RegressionModel
    _clock = staticmethod(time.time)

    stored = Stored(
        fitted={
            **EVIDENCE,
            "_claims": Field((list,), Field((tuple, list))),
            "_extents": Field((np.ndarray,)),
            "model_": Field((RegressionModel,)),
            "_shares": Field((list,), Field((int, float)), is_record=True),
            "dates_": FLAG,
            "history_": Field((list,), Field((dict,))),
            "inference_": TEXT,
            "invariance_": Field((str, NoneType)),
            "noise_": NUMBER,
            "score_": REPORTED,
            "search_rows_": Field((int,), least=0, most=MOST_COUNTED),
            "spelling_": TEXT,
        },
        sometimes={"stopped_": TEXT},
    )

    @property
    def latent_functional(self) -> Functional:
        """L of the model f = L g."""
        return self.model_.latent.functional

    def check_parts(self) -> None:
        super().check_parts()
        width = self.n_features_in_
        self.model_.check_fits(width, self.posterior_.num_outputs)
        for kind, columns, value, is_given in self._claims:
            known = isinstance(kind, str) and kind in KINDS and isinstance(is_given, bool)
            require(known, "an unknown claim")
            are_columns = isinstance(columns, tuple | list) and all(
                type(each) is int and 0 <= each < width for each in columns
            )
            require(are_columns, "a claim about other columns")
            require(value is None or math.isfinite(value), "a claim that is not finite")
        fits = self._extents.shape == (width,) and self._extents.dtype == np.float64
        require(fits, "extents of other inputs")
        for row in self.history_:
            fits = "step" in row and all(isinstance(row.get(key), kind) for key, kind in STEPS.items())
            require(fits, "a history with other entries")
        # a description that fails would fail later, for the user
        self.summary()

    def __init__(
        self,
        *,
        scoring: Literal["bic", "laplace"] = "bic",
        max_depth: int = 3,
        base_kernels: Sequence[str] = ("rbf", "periodic", "linear", "rq"),
        invariances: str | Sequence[str] | None = "auto",
        max_seconds: float | None = None,
        search_rows: int = 300,
        num_restarts: int = 2,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = True,
    ) -> None:
        self.scoring: Literal["bic", "laplace"] = scoring
        self.max_depth = max_depth
        self.base_kernels = base_kernels
        self.invariances = invariances
        self.max_seconds = max_seconds
        self.search_rows = search_rows
        self.num_restarts = num_restarts
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @learning("log_evidence_", "noise_")
    def fit(self, X: ArrayLike, y: ArrayLike) -> AutoGPRegressor:
        """Search for a structure, and learn its hyperparameters by the evidence.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or dates
            Rows; dates are converted to decimal years.
        y : array-like of shape (n_samples,)
            Targets.

        Returns
        -------
        AutoGPRegressor
            The fitted estimator.
        """
        self._check_settings()
        x, targets = self._training(X, y)
        began = self._clock()
        seed = int(check_random_state(self.random_state).randint(2**31))
        bases = base_terms(self.base_kernels, x.shape[1])
        scaling = Scaling.of(x, [term.name for term in bases])
        deadline = math.inf if self.max_seconds is None else began + self.max_seconds
        whole = SearchData(scaling.apply(x), targets, self.scoring, deadline, self._clock)
        claims = [scaling.scaled_claim(claim) for claim in claims_of(self.invariances, x.shape[1])]
        effort = Effort(
            max_depth=self.max_depth, num_restarts=self.num_restarts, n_jobs=self.n_jobs, seed=seed
        )
        if np.ptp(targets) <= 1e-12 * np.abs(targets).max():
            bases, claims = [Term("constant")], []  # constant targets have no structure
        search = Search(whole.some_rows(self.search_rows), bases, claims, effort)
        console = Console(stderr=True)
        if self.verbose and console.is_terminal:
            with console.status("searching") as status:
                search.report = status.update
                found = search.run_on(whole)
        else:
            found = search.run_on(whole)
        self.history_, self.search_rows_ = search.history, len(search.data.x)
        is_cut_short = whole.is_over()
        is_cut_short |= self._store(found, scaling, x, targets, whole.is_over)
        self.stopped_ = "time_limit" if is_cut_short else "complete"
        return self

    def _check_settings(self) -> None:
        check_settings(self, search_rows=FEWEST_ROWS)
        if isinstance(self.base_kernels, str) or not len(self.base_kernels):
            raise ValueError(f"base_kernels must be a list of names, not {self.base_kernels!r}.")

    def _training(self, X: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        numbers, self.dates_ = without_dates(as_array(X))
        if self.dates_:
            warnings.warn("Dates were turned into decimal years.", UserWarning, stacklevel=4)
        x, targets = check_data(self, numbers, y, y_numeric=True)
        if len(x) < FEWEST_ROWS:
            raise ValueError(
                f"A search needs at least {FEWEST_ROWS} rows, but X has n_samples={len(x)}: with so few, "
                "choose the kernel yourself, with InvariantGPRegressor(orbitwise.kernels.parse('rbf'))."
            )
        return x, np.asarray(targets, dtype=np.float64)

    def _store(
        self,
        found: Fitted,
        scaling: Scaling,
        x: NDArray[np.float64],
        y: NDArray[np.float64],
        is_over: Callable[[], bool],
    ) -> bool:
        """Fit and keep the best structure; return whether time ran out during the fit."""
        hypothesis = scaling.undo(found.hypothesis)
        estimator, claims, is_cut_short = refitted(hypothesis, x, y, is_over)
        self._claims = [astuple(claim) for claim in claims]
        for name in (
            *("kernel_", "noise_", "posterior_", "functional_", "log_evidence_", "evidence_kind_"),
            *("log_evidence_error_", "converged_", "inference_", "fit_result_", "model_", "target_scale_"),
        ):
            setattr(self, name, getattr(estimator, name))
        self.score_ = found.score
        self.spelling_ = str(without_values(hypothesis.expression))
        self.invariance_ = " | ".join(map(str, claims)) or None
        self._extents = np.ptp(x, axis=0)
        parts, width = additive_parts(self.kernel_), self._width()
        variance = float(np.var(y)) or 1.0
        variances = [0.0] * len(parts)
        if self.inference_ == "exact":
            moments = part_moments(parts, width, self.posterior_, self.functional_, torch.tensor(x))
            variances = [float(np.var(mean)) for mean, _ in moments]
        self._shares = [each * float(self.target_scale_.scale[0]) ** 2 / variance for each in variances]
        return is_cut_short

    def components(self, X: ArrayLike) -> list[Component]:
        """The posterior mean and standard deviation of each additive component of f, in units of y.

        The means and the constant `mean_` add up to `predict`.
        """
        x = self._inputs(X)
        words, scale = self._words(""), float(self.target_scale_.scale[0])
        found, parts = [], additive_parts(self.kernel_)
        moments = part_moments(parts, self._width(), self.posterior_, self.functional_, x)
        for part, (mean, std) in zip(parts, moments, strict=True):
            place = in_input_columns(part, self._learned_claims)
            phrase = component_phrase(place, words)
            found.append(Component(str(without_values(place)), phrase, mean * scale, std * scale))
        return found

    @property
    def mean_(self) -> float:
        """The constant mean of f, in units of y."""
        check_is_fitted(self)
        constant = next(self.model_.latent.process.mean_module.parameters(), torch.zeros(())).item()
        return constant * float(self.target_scale_.scale[0]) + float(self.target_scale_.shift[0])

    def describe(self, unit: str = "") -> str:
        """The structure in plain words; `unit` is the unit of x, such as "years"."""
        check_is_fitted(self)
        claims = self._learned_claims
        parts = [in_input_columns(part, claims) for part in additive_parts(self.kernel_)]
        return summary(parts, self._shares, claims, self._words(unit), math.sqrt(self.noise_))

    def summary(self, unit: str = "") -> str:
        """The structure, its evidence, and its description."""
        text = self.spelling_ + (f" | {self.invariance_}" if self.invariance_ else "")
        evidence = f"log evidence {self.log_evidence_:,.1f} ({self.evidence_kind_})"
        return f"{text}\n{evidence}, {self.scoring} {self.score_:,.1f}\n{self.describe(unit)}"

    def table(self, most: int = 20) -> ResultTable:
        """The best fits of the search as a table, with each structure once."""
        check_is_fitted(self)
        headings = ("structure", "score", "log likelihood", "numbers learned", "step")
        table = ResultTable("Structures by score", headings)
        best: dict[str, Record] = {}
        for row in sorted(self.history_, key=lambda row: -row["score"]):
            best.setdefault(row["structure"], row)
        for name, row in list(best.items())[:most]:
            numbers = (f"{row['score']:,.1f}", f"{row['log_likelihood']:,.1f}", str(row["num_parameters"]))
            table.add_row(name, *numbers, str(row["step"]))
        return table

    def _inputs(self, X: ArrayLike, plain: bool = True) -> torch.Tensor:
        check_is_fitted(self)
        return super()._inputs(without_dates(as_array(X))[0], plain)

    @property
    def _learned_claims(self) -> list[Claim]:
        """The claims of the structure, which model files hold as plain tuples."""
        return [Claim(*claim) for claim in self._claims]

    def _width(self) -> int:
        """The number of columns of the inputs of g: a period replaces one column by two."""
        return self.n_features_in_ + sum(claim[0] == "period" for claim in self._claims)

    def _words(self, unit: str) -> Words:
        count = self.n_features_in_
        names = getattr(self, "feature_names_in_", None)
        known = names_of_columns(None if names is None else list(names), count)
        return Words(
            known, np.asarray(self._extents), unit or ("years" if self.dates_ and count == 1 else "")
        )
