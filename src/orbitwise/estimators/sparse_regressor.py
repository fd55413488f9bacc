"""SparseGPRegressor: Gaussian-process regression of many rows, with a certificate of how exact it is.

A stream holds the sums over all rows seen, to which batches add.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from orbitwise.declarations import COUNT, Field, Stored, require
from orbitwise.estimators.convergence import learning
from orbitwise.estimators.estimator import (
    USUAL_INDUCING,
    LearnedOrbit,
    RegressionPredictions,
    chosen_device,
    work_of,
)
from orbitwise.estimators.invariances import Invariance
from orbitwise.estimators.regression_model import (
    RegressionModel,
    begin_at_best,
    generator_on,
    merge,
    prepare,
    sparse_form,
    warn_of_few_targets,
)
from orbitwise.estimators.sources import Source, Targets
from orbitwise.estimators.training_data import TrainingData, check_training, training_parts
from orbitwise.estimators.validation import Channels
from orbitwise.functionals.averages import freeze_functional
from orbitwise.functionals.features import Features
from orbitwise.functionals.functional import Evaluation, Functional
from orbitwise.inference.fit_result import FitResult
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.checkpoints import Journal, Progress
from orbitwise.inference.optimise.training import INTERRUPTED, TIME_IS_OVER
from orbitwise.inference.processes import ALONE, Processes
from orbitwise.inference.sparse.bounds import (
    BoundName,
    Totals,
    best_q,
    common_bracket,
    gather_totals,
    safe_bracket,
)
from orbitwise.inference.sparse.certificate import Budget, Certificate, Outcome, learn
from orbitwise.inference.sparse.inducing import Inducing, check_inducing, inducing_factor
from orbitwise.inference.sparse.model import ITERATIVE_ROWS, Selection, SparseModel
from orbitwise.inference.sparse.posterior import SparsePosterior, Whitened
from orbitwise.inference.stochastic.trainer import BoundEstimate, StochasticTrainer
from orbitwise.inference.stored_rows import Inputs, as_inputs, held_rows
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.process.process import Process


@final
@dataclass(frozen=True)
class Stream:
    """What is held of the rows seen: their totals, or, after stochastic steps, a q(v) alone.

    `sources` are the inputs of inducing variables that are values of f, None where they are points of g.
    """

    process: Process
    functional: Functional
    likelihood: Gaussian
    inducing: Inducing
    sources: Tensor | None
    lower: Tensor
    totals: Totals | None
    merged: float
    num_rows: float
    q: Whitened | None = None
    age: int = 0

    stored = Stored({"num_rows": COUNT, "age": COUNT})

    def check_parts(self) -> None:
        """Raise a ValueError where totals, factor and q are not those of the same inducing variables."""
        size, totals = len(self.lower), self.totals
        check_inducing(self.inducing, self.lower)
        require(totals is not None or self.q is not None, "neither totals nor q")
        if totals is not None:
            shapes = (totals.gram.shape, len(totals.product))
            require(shapes == ((size, size), size), "totals of other variables")
            require(bool(totals.gram.diagonal().ge(0).all()), "totals that no rows have")
        require(self.q is None or len(self.q.mean) == size, "a q of other inducing variables")

    @property
    def num_outputs(self) -> int:
        """How many columns the targets have."""
        if self.totals is not None:
            return self.totals.num_outputs
        assert self.q is not None, "a stream without sums has learned q by steps"
        return self.q.mean.shape[1]

    @classmethod
    @torch.no_grad()
    def of(cls, model: SparseModel, num_rows: float) -> Stream:
        """The stream that a model starts whose bracket was just computed."""
        inducing = model.inducing
        lower, totals = inducing_factor(model.process, inducing), model.totals
        sources = None if model.chosen is None else model.observations.x[model.chosen]
        merged = float(model.merged_term())
        assert isinstance(model.likelihood, Gaussian)
        parts = (model.process, model.functional, model.likelihood)
        return cls(*parts, inducing, sources, lower, totals, merged, num_rows)

    @property
    def noise(self) -> Tensor:
        """σ² of a standardised target."""
        return self.likelihood.noise[0].detach()

    def posterior(self) -> SparsePosterior:
        """g given all rows seen."""
        if self.totals is None:
            assert self.q is not None, "a stream without sums has learned q by steps"
            return SparsePosterior(self.process, self.inducing, self.q, self.lower)
        return SparsePosterior(self.process, self.inducing, best_q(self.totals, self.noise), self.lower)

    def certificate(self, tolerance: float) -> Certificate:
        """The bracket of all rows seen; infinitely wide after stochastic steps, which hold no sums."""
        count = len(self.lower)
        if self.totals is None:
            return Certificate(-math.inf, math.inf, count, int(self.num_rows), tolerance, "fixed")
        bracket = common_bracket([safe_bracket(self.totals, self.noise)], self.merged, self.totals.num_rows)
        return Certificate(*bracket, count, int(self.num_rows), tolerance, "fixed")


@torch.no_grad()
def observe(
    stream: Stream, x: Tensor, targets: Tensor, weight: Tensor, processes: Processes = ALONE
) -> Stream:
    """The stream with more rows, at the same hyperparameters; several processes may share them."""
    rows = merge(x.cpu().numpy(), targets.cpu().numpy(), weight.cpu().numpy())
    merged = float(rows.merged_term(stream.noise.cpu()))
    if bool((rows.weights() == 1).all()):
        rows = replace(rows, weight=None)
    rows = replace(rows.to(x.device).through(stream.functional), processes=processes)
    totals = gather_totals(stream.process, rows, stream.inducing, stream.lower, stream.noise)
    seen = float(weight.sum())
    if stream.totals is not None:
        totals, merged, seen = stream.totals.merge(totals), stream.merged + merged, stream.num_rows + seen
    return replace(stream, totals=totals, merged=merged, num_rows=seen, q=None)


def learn_from(
    stream: Stream,
    x: Tensor,
    targets: Tensor,
    weight: Tensor,
    num_rows: int | None,
    num_steps: int,
    batch_size: int,
) -> tuple[Stream, BoundEstimate]:
    """Stochastic steps of hyperparameters and q on a batch that represents `num_rows` rows.

    A row of weight w counts as w rows. The bound that is reached is estimated from the rows of the batch: the
    mean per row times `num_rows`, less KL. Its standard error is what the choice of these rows makes.
    """
    kept = weight > 0
    x, targets, weight = x[kept], targets[kept], weight[kept]
    known, total = stream.num_rows if num_rows is None else num_rows, float(weight.sum())
    if known < total:
        raise ValueError(f"num_rows={known:.12g} is less than the {total:.12g} rows of the batch.")
    trainer = StochasticTrainer(
        LatentModel(stream.process, stream.functional, stream.likelihood),
        Observations(Evaluation(), x, targets, None if bool((weight == 1).all()) else weight),
        stream.inducing if stream.sources is None else stream.sources,  # pyright: ignore[reportArgumentType]
        torch.Generator(x.device).manual_seed(stream.age),
        batch_size,
        inducing_functional=None if stream.sources is None else stream.functional,
        # the trainer counts rows that differ, each with its weight
        num_rows=len(x) * (known / total),
    )
    trainer.q = stream.posterior().q
    # As if all batches until now had been averaged, so that the first step does not forget them.
    trainer.age = max(stream.age, int(trainer.num_rows // max(1, batch_size)))
    trainer.run(num_steps)
    with torch.no_grad():
        inducing = trainer.inducing.detach() if stream.sources is None else trainer.inducing_rows()
        lower = inducing_factor(stream.process, inducing)
        parts = torch.arange(len(x), device=x.device).chunk(ESTIMATE_PARTS)
        sums = torch.stack([trainer.bound_on(part).data for part in parts])
        bound = known / total * sums.sum() - trainer.q.divergence()
        each = sums / torch.stack([weight[part].sum() for part in parts])
        # no error where the batch is all rows
        share = 1 - total / known
        scatter = each.var() if len(parts) > 1 else torch.tensor(math.nan)
        error = known * (share * scatter / len(parts)).sqrt() if share else torch.zeros(())
    learned = replace(
        stream,
        inducing=inducing,
        lower=lower,
        totals=None,
        num_rows=float(known),
        q=trainer.q,
        age=trainer.age,
    )
    return learned, BoundEstimate(float(bound), float(error))


FEW_ATOMS = 4
ESTIMATE_PARTS = 8
"""Parts of a batch whose scatter tells the error of the bound that is estimated from it."""
SETTINGS = ("num_inducing", "tolerance", "selection", "optimize_inducing", "max_inducing", "max_iterations")
"""What the course of a fit depends on in addition to model, data and seed."""


@final
class SparseGPRegressor(LearnedOrbit, RegressionPredictions, RegressorMixin, MultiOutputMixin, BaseEstimator):
    """Sparse Gaussian-process regression that finds out how many inducing variables are enough.

    g is summarised by its values at a few inducing points. Their number doubles until the evidence
    gains less than the tolerance, and a certificate says how far the answer can be from that of exact
    inference. Where up to 8,000 points need so many that exact inference costs no more, kernel and noise are
    learned by the exact evidence.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel, default=None
        Kernel of the base process g, for standardised targets if `normalize_y`. None takes a scaled RBF
        kernel with a lengthscale for each column, which has a weak hyperprior (one lengthscale for all of
        them where there is an invariance).
    invariance : None, str, Orbit or Functional, default=None
        What f should not care about, as in `InvariantGPRegressor`; orbits drawn at random are frozen.
    features : torch.nn.Module, callable or transformer, default=None
        A fixed map φ of inputs to features, on which the kernel lives, as in `InvariantGPRegressor`.
    num_inducing : int or "auto", default="auto"
        Inducing variables. "auto" doubles their number until the evidence gains less than the tolerance; a
        number keeps the cost fixed.
    tolerance : float, default=0.01
        How narrow the bracket of the log evidence should be, in nats per row. A larger one takes less time.
    bound : {"tight", "titsias", "cg"}, default="tight"
        The lower bound that is maximised. "tight" costs as much as "titsias" and is never below it. "cg"
        solves the quadratic form by conjugate gradients, up to 20,000 rows, and predicts with the exact mean.
    selection : {"auto", "greedy", "kmeans", "random"}, default="auto"
        How inducing variables are chosen: by the largest variance left, at centres of clusters, at random;
        "auto" is greedy, but takes clusters for points that move.
    optimize_inducing : bool or "auto", default="auto"
        Whether points of g move by gradients as well. "auto" lets them where their number is given, or where
        `max_inducing` turns out to be too few.
    max_inducing : int or "auto", default="auto"
        The most inducing variables that `num_inducing="auto"` takes; "auto" is 2,000, or all rows if
        these, times the elements of a finite orbit, are at most 8,000. If they were too few, the certificate
        and a ConvergenceWarning say so.
    max_seconds : float, default=None
        Seconds after which no evaluation begins, for any `num_inducing`. If time ended the search, the
        certificate and a ConvergenceWarning say so.
    noise : float, default=None
        Noise variance in units of y squared, positive; None learns it.
    mean : {"zero", "constant", "linear"}, default="zero"
        Mean function of g, as in `InvariantGPRegressor`.
    image_shape : tuple of int, default=None
        (height, width) of an image in a row of X, as in `InvariantGPRegressor`.
    channels : {"auto", "first", "last"}, default="auto"
        Where images have their channels, as in `InvariantGPRegressor`.
    normalize_y : bool, default=True
        Standardise targets. The evidence is always that of the targets as given.
    one_sided : {"auto", True, False}, default="auto"
        Whether one side of a group average is enough, see `orbitwise.process.Process`.
    num_nodes : int, default=16
        Fixed nodes over which an orbit drawn at random is averaged.
    max_iterations : int, default=100
        L-BFGS iterations of each stage at most; 0 keeps kernel and noise as they are.
    num_steps : int, default=50
        Stochastic steps of a call of `partial_fit(…, learn=True)`.
    batch_size : int, default=256
        Rows per stochastic step.
    random_state : int, RandomState or None, default=None
        Seeds what is drawn.
    device : str, default="auto"
        Where to compute: "cpu", "cuda", "cuda:1", … "auto" takes the GPU if there is one and rows × nodes ×
        inducing points × columns are at least 10⁹, else the CPU; `device_` says which.
    verbose : bool, default=False
        Whether to show progress: a bar in terminals and notebooks, a line now and then elsewhere.
    callback : callable, default=None
        A function of (iteration, bound), called at every iteration. It may raise KeyboardInterrupt to end the
        fit, which keeps the best so far, as Ctrl-C does.
    checkpoint : str, default=None
        A folder where `fit` keeps its progress. The same fit to the same data, by the same seed, resumes from
        there after it was killed. With the same number of threads the result is identical; with another
        number it warns, and the result agrees up to rounding. The "cg" bound resumes after its first
        start only, and a `max_seconds` counts the seconds of the last process.

    Attributes
    ----------
    certificate_ : Certificate
        `lower` ≤ log p(y) ≤ `upper`, their `gap` per row, `num_inducing`, `history`, `reason` and `is_met`.
    log_evidence_ : float
        The certificate's lower end, in nats.
    evidence_kind_ : str
        "lower bound".
    kernel_ : gpytorch.kernels.Kernel
        The learned kernel of g.
    hyperparameters_ : list of Hyperparameter
        Lengthscales, variances and noise by name, in the units of the data.
    noise_ : float
        The learned noise variance, in units of y squared.
    functional_ : Functional
        L, with f(x) = L_x g.
    features_ : Module, callable, transformer or None
        The features as they are used: the copy of the module, or the fitted transformer.
    orbit_ : Orbit or None
        The learned orbit; printing it shows its ranges.
    orbit_errors_ : dict of str to float
        The standard error of every learned range.
    posterior_ : Posterior
        The posterior of g.
    converged_ : bool
        Whether learning converged.
    history_ : list of float
        The bound plus the log density of hyperpriors, at every iteration.
    device_ : str
        The device of the fit and of predictions.
    n_features_in_ : int
        Number of features of a row.

    See Also
    --------
    InvariantGPRegressor : Exact inference, other likelihoods, observations of slopes.

    Examples
    --------
    >>> import numpy as np
    >>> from orbitwise import SparseGPRegressor
    >>> random = np.random.default_rng(0)
    >>> X = random.uniform(-3, 3, size=(400, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * random.normal(size=400)
    >>> model = SparseGPRegressor().fit(X, y)
    >>> model.certificate_.is_met, model.certificate_.num_inducing < 100
    (True, True)
    >>> mean, std = model.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.0)) < 0.1)
    True
    """

    n_features_in_: int
    shares_rows = True

    stored = Stored(
        fitted={
            "_stream": Field((Stream,)),
            "certificate_": Field((Certificate,)),
            "noise_": Field((int, float, np.ndarray), least=0),
        }
    )

    def __init__(
        self,
        kernel: Kernel | None = None,
        invariance: Invariance = None,
        *,
        features: Features | None = None,
        num_inducing: int | Literal["auto"] = "auto",
        tolerance: float = 0.01,
        bound: BoundName = "tight",
        selection: Selection = "auto",
        optimize_inducing: bool | Literal["auto"] = "auto",
        max_inducing: int | Literal["auto"] = "auto",
        max_seconds: float | None = None,
        noise: float | None = None,
        mean: Literal["zero", "constant", "linear"] = "zero",
        image_shape: Sequence[int] | None = None,
        channels: Channels = "auto",
        normalize_y: bool = True,
        one_sided: Literal["auto"] | bool = "auto",
        num_nodes: int = 16,
        max_iterations: int = 100,
        num_steps: int = 50,
        batch_size: int = 256,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
        callback: Callable[[int, float], None] | None = None,
        checkpoint: str | None = None,
    ) -> None:
        self.kernel = kernel
        self.invariance = invariance
        self.features = features
        self.num_inducing = num_inducing
        self.tolerance = tolerance
        self.bound: BoundName = bound
        self.selection = selection
        self.optimize_inducing = optimize_inducing
        self.max_inducing = max_inducing
        self.max_seconds = max_seconds
        self.noise = noise
        self.mean = mean
        self.image_shape = image_shape
        self.channels: Channels = channels
        self.normalize_y = normalize_y
        self.one_sided: Literal["auto"] | bool = one_sided
        self.num_nodes = num_nodes
        self.max_iterations = max_iterations
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.callback = callback
        self.checkpoint = checkpoint

    @learning("log_evidence_", "noise_")
    def fit(
        self, X: ArrayLike | Source, y: Targets | None = None, sample_weight: ArrayLike | None = None
    ) -> SparseGPRegressor:
        """Learn kernel, noise and inducing variables.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Rows, or images, signals and point clouds with dimensions of their own.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            How many repetitions of a row each row represents.

        Returns
        -------
        SparseGPRegressor
            The fitted estimator.
        """
        return self._fit(X, y, sample_weight)

    def _fit(
        self, X: ArrayLike | Source, y: Targets | None, sample_weight: ArrayLike | None
    ) -> SparseGPRegressor:
        if self.noise == 0:
            raise ValueError(
                "Sparse inference needs noise: give a positive noise variance, None to learn it, or use "
                "InvariantGPRegressor(inference='exact', noise=0)."
            )
        x, targets, weight, is_vector = check_training(self, X, y, sample_weight)
        most = None if self.max_inducing == "auto" else int(self.max_inducing)
        budget = Budget(most, self.max_seconds, self.max_iterations, self._common_clock)
        generator = self._generator()
        functional, rows = self._begin(x)
        frozen = freeze_functional(functional, self.num_nodes, generator)
        model = prepare(
            rows,
            targets,
            weight,
            frozen,
            self.kernel,
            self.noise,
            self.mean,
            self.normalize_y,
            self.one_sided,
            (),
            is_vector=is_vector,
        )
        if self.max_iterations != 0:
            warn_of_few_targets(type(self).__name__, model)
        wanted = None if self.num_inducing == "auto" else int(self.num_inducing)
        if self.kernel is None and frozen.is_identity and self.max_iterations > 0:
            begin_at_best(model, wanted)
        self.target_scale_ = model.target_scale
        num_inducing = USUAL_INDUCING if self.num_inducing == "auto" else int(self.num_inducing)
        work = work_of(model.latent.functional, model.observations[0].x, None, num_inducing)
        self.device_ = chosen_device(self.device, work)
        sparse = self._sparse(sparse_form(model.to(self.device_)))
        if wanted is not None and wanted > sparse.num_rows:
            warnings.warn(
                f"num_inducing={wanted} is more than the {sparse.num_rows} distinct rows: all rows are used.",
                UserWarning,
                stacklevel=4,
            )
        generator = generator_on(self.device_, generator)
        moves = self.optimize_inducing is not False
        journal = self._journal(sparse, *sparse.observations.tensors, generator)
        with self._reporter("sparse inference") as reporter:
            search = (wanted, self.selection, moves, reporter, journal)
            outcome = learn(sparse, self.tolerance, budget, generator, *search)
        self._store(sparse, outcome, float(weight.sum()))
        return self

    @learning("noise_", once=True)
    def partial_fit(
        self,
        X: ArrayLike | Source,
        y: Targets | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        learn: bool = False,
        num_rows: int | None = None,
    ) -> SparseGPRegressor:
        """Take one more batch of rows into account, for data that do not fit in memory.

        The first call is a `fit`. Later ones keep kernel, noise and inducing variables as they are, and give
        exactly the posterior of all rows seen. A ConvergenceWarning is given once, not at every batch;
        `certificate_` is that of all rows seen.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The batch.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Its targets.
        sample_weight : array-like of shape (n_samples,), default=None
            How many repetitions of a row each row represents.
        learn : bool, default=False
            Take stochastic steps that move kernel and noise instead. Rows have to be shown once more after
            that. Until then `log_evidence_` is the bound estimated from this batch, with the standard error
            `log_evidence_error_`, and `certificate_` knows no bounds.
        num_rows : int, default=None
            With `learn`: how many rows the batch represents in all, counting repetitions; None takes those
            seen so far.

        Returns
        -------
        SparseGPRegressor
            The estimator.
        """
        if not hasattr(self, "posterior_"):
            return self._fit(X, y, sample_weight)
        bound = None
        if learn:
            batch = self._batch(check_training(self, X, y, sample_weight, reset=False))
            steps = (num_rows, self.num_steps, self.batch_size)
            self._stream, bound = learn_from(self._stream, *batch, *steps)
        else:
            for part in training_parts(self, X, y, sample_weight):
                self._stream = observe(self._stream, *self._batch(part), self._processes)
        certificate = self._stream.certificate(self.tolerance)
        evidence, error = (certificate.lower, 0.0) if bound is None else bound
        result = replace(
            self.fit_result_,
            posterior=self._stream.posterior(),
            certificate=certificate,
            log_evidence=evidence,
            standard_error=error,
        )
        before = {} if learn else dict(vars(self))
        self._keep(result, self._stream.num_rows)
        # more rows alone leave the ranges of the orbit, and so their error bars, as they were
        for name in ("_orbit_errors", "_orbit_intervals", "search_", "stopped_by_", "_num_nodes"):
            if name in before:
                setattr(self, name, before[name])
        return self

    def _common_clock(self) -> float:
        """The time of the first of the processes that share a fit."""
        return self._processes.from_first(self._clock())

    def _batch(self, data: TrainingData) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, standardised targets and weights of a batch, on the device."""
        rows = held_rows(as_inputs(data.x)).to(self.device_) - self.form_.background
        standardised = self.target_scale_.standardised(torch.from_numpy(data.y))
        return rows, standardised.to(self.device_), torch.from_numpy(data.weight).to(self.device_)

    def _sparse(self, model: RegressionModel) -> SparseModel:
        latent, (rows,) = model.latent, model.observations
        rows = replace(rows, processes=self._processes)
        if bool((rows.weights() == 1).all()):
            rows = replace(rows, weight=None)
        with torch.no_grad():
            atoms = latent.functional.atoms(rows.x[:1])
        few = atoms.points.shape[-2] <= FEW_ATOMS or latent.process.shares_symmetry(atoms)
        moves = self.num_inducing != "auto" if self.optimize_inducing == "auto" else self.optimize_inducing
        if self.bound == "cg" and len(rows) > ITERATIVE_ROWS:
            raise ValueError(
                f"bound='cg' costs O(N²) per step and takes up to {ITERATIVE_ROWS:,} rows, "
                f"not {len(rows):,}: use bound='tight'."
            )
        return SparseModel(
            latent.process,
            rows.through(latent.functional),
            latent.likelihood,
            self.bound,
            "f" if few else "g",
            bool(moves) and self.max_iterations > 0,
        )

    def _journal(self, *parts: nn.Module | Inputs | torch.Generator | None) -> Journal | None:
        if self.checkpoint is None or not self._processes.is_first:
            return None
        settings = [getattr(self, name) for name in SETTINGS]
        progress = Progress.of(self.checkpoint, "sparse", settings, *parts)
        return None if progress is None else progress.journal

    def _store(self, sparse: SparseModel, outcome: Outcome, num_rows: float) -> None:
        self._stream = Stream.of(sparse, num_rows)
        result = FitResult(
            sparse.posterior() if self.bound == "cg" else self._stream.posterior(),
            sparse.functional,
            outcome.certificate.lower,
            "lower bound",
            0.0,
            outcome.converged,
            sparse,
            [parameter for parameter in sparse.parameters() if parameter.requires_grad],
            outcome.history,
            certificate=outcome.certificate,
            stopped={"interrupted": INTERRUPTED, "time_limit": TIME_IS_OVER}.get(
                outcome.certificate.stopped, ""
            ),
        )
        self._keep(result, num_rows)

    def _keep(self, result: FitResult, num_rows: float) -> None:
        self._set_result(result.in_units(-num_rows * self.target_scale_.log_unit), self._stream.process)
        self.noise_ = self.target_scale_.variance(self._standardised_noise())

    def check_parts(self) -> None:
        super().check_parts()
        require(self._stream.num_outputs == self.posterior_.num_outputs, "totals of other outputs")

    @property
    def latent_functional(self) -> Functional:
        """L of the model f = L g, before its orbit was frozen to predict."""
        return self._stream.functional

    @property
    def _likelihood(self) -> Gaussian:
        check_is_fitted(self)
        return self._stream.likelihood
