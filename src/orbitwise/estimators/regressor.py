"""InvariantGPRegressor: Gaussian-process regression with an invariance in the prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from orbitwise.declarations import REPORTED, TEXT, Field, Stored
from orbitwise.estimators.convergence import learning
from orbitwise.estimators.engines import Engine, EngineName, engine_for, num_points
from orbitwise.estimators.estimator import EngineEstimator, RegressionPredictions, resolve_likelihood
from orbitwise.estimators.invariances import Invariance
from orbitwise.estimators.regression_model import (
    Observation,
    RegressionModel,
    begin_at_best,
    generator_on,
    prepare,
    sparse_form,
    warn_of_few_targets,
)
from orbitwise.estimators.sources import Source, Targets
from orbitwise.estimators.training_data import Rows, check_training
from orbitwise.estimators.validation import Channels
from orbitwise.functionals.averages import freeze_at
from orbitwise.functionals.features import Features
from orbitwise.functionals.functional import Functional
from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.fit_result import FitResult
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.certificate import Certificate, certify
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.stored_rows import as_inputs, held_rows
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.laplace import Laplace
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.likelihoods.poisson import Poisson
from orbitwise.likelihoods.student import StudentT

NoiseName = Literal["gaussian", "laplace", "poisson", "student_t"]
REFINED_ATOMS = 8_192
"""Up to so many points of orbits, conjugate gradients narrow the certificate of a collapsed fit."""


def regression_likelihood(given: str | Likelihood) -> Likelihood:
    """The likelihood of targets that are numbers, not shared with the caller."""
    named = {"gaussian": Gaussian, "laplace": Laplace, "poisson": Poisson, "student_t": StudentT}
    return resolve_likelihood(given, named)


@final
class InvariantGPRegressor(
    EngineEstimator, RegressionPredictions, RegressorMixin, MultiOutputMixin, BaseEstimator
):
    """Gaussian-process regression with an invariance in the prior, learned by the evidence.

    The function is f(x) = L_x g, where g is a Gaussian process and L_x averages g over everything that x may
    be moved to, so f is invariant by construction. Kernel, noise and the ranges of the moves are those under
    which the training targets are most probable (the evidence); no validation set is needed.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel, default=None
        Kernel of the base process g. None takes a scaled RBF kernel that starts at the scale of the data;
        lengthscales of columns, where each has its own, stay near that scale unless the targets are against
        it (a log-normal hyperprior). Hyperparameters are learned, priors and constraints of a given kernel
        respected; `kernel` itself is not changed. Give one where you know that f is periodic, rough or
        linear.
    invariance : None, str, Orbit or Functional, default=None
        What f should not care about: a name such as "permutation", "affine" or "signal:shift" (the page
        "Names of invariances" has all), an orbit to average over, or any functional of g.
    features : torch.nn.Module, callable or transformer, default=None
        A fixed map φ of inputs to features, on which the kernel lives: f(x) averages g(φ(t x)) over the moves
        t. A module (copied, in evaluation mode) sees images as [n, channels, height, width], and ranges are
        learned through it. A function takes and gives an array or a tensor, a scikit-learn transformer takes
        rows; both have no derivatives, so ranges cannot be learned through them. An unfitted transformer is
        fitted to the training rows. `load` asks for φ again, because it is code.
    noise : float, default=None
        Noise variance in units of y squared; None learns it. Give it where it is known, and 0 for targets
        that were computed, not measured. Gaussian noise only.
    likelihood : {"gaussian", "student_t", "laplace", "poisson"} or Likelihood, default="gaussian"
        How targets scatter about f. Take "student_t" or "laplace" where some targets may be far off,
        "poisson" for counts, whose rate is then exp f. Any but Gaussian noise is fitted by a variational
        lower bound on the evidence, which averages a drawn orbit over fixed nodes. Its parameters, also the
        variance of an instance of `Gaussian`, are learned from where an instance starts, for standardised
        targets if `normalize_y`.
    mean : {"zero", "constant", "linear"}, default="zero"
        Mean function of g, learned with the kernel. With `normalize_y`, "zero" means the mean of the targets.
        "linear" suits a trend that continues outside the data.
    image_shape : tuple of int, default=None
        (height, width), or three sizes in the order of `channels`, for invariances of images when X has two
        dimensions. Not needed where X comes as [n, height, width] or with channels.
    channels : {"auto", "first", "last"}, default="auto"
        Where images [n, …], and three sizes of `image_shape`, have their channels. "auto" takes the axis of
        1, 3 or 4 at either end and refuses what could be both. Orbits, functionals and kernels always see
        rows with the channels first.
    normalize_y : bool, default=True
        Standardise targets, by median and quartiles under heavy tails; of counts, f is centred at the
        logarithm of their mean. The evidence is always that of the targets as given.
    one_sided : {"auto", True, False}, default="auto"
        Whether one side of a group average is enough, see `orbitwise.process.Process`.
    num_nodes : int, default=None
        Fixed nodes over which a drawn orbit is averaged, the same for every seed. None doubles them until
        other nodes would change neither evidence nor ranges (collapsed inference takes 16).
    max_nodes : int, default=None
        The most nodes that doubling takes. None takes as many as one evaluation can do in some seconds. Raise
        it if a ConvergenceWarning says that ranges did not converge.
    max_seconds : float, default=None
        Seconds after which no step begins, with any engine, and neither nodes nor inducing points double any
        more; the best so far is then kept, and a ConvergenceWarning says so. None takes the time it needs.
    max_memory : float, default=None
        Bytes that more inducing points may take. None takes what is free on the machine, or the GPU.
    max_iterations : int, default=None
        Iterations at most. None takes 200, or 40 for each ascent where nodes are used; 0 keeps the kernel as
        it is.
    num_restarts : int, default=0
        Additional random starts of exact and collapsed inference. Raise it for kernels with several modes,
        such as periodic ones.
    random_state : int, RandomState or None, default=None
        Seeds restarts, inducing points and batches.
    inference : {"auto", "exact", "collapsed", "variational"}, default="auto"
        "auto" chooses by size. Without an orbit that is drawn, inference is exact up to 8,000 rows (times the
        elements of a finite orbit). Otherwise, or where `num_inducing` is a number, it is exact to 1,500
        rows, collapsed to 5,000, then stochastic variational inference. Always
        exact, and only so, with `observations` or noise=0. Never exact with other likelihoods than Gaussian
        noise.
    num_inducing : int or "auto", default="auto"
        Inducing points of collapsed and variational inference: g is summarised by its values at these
        points. Kernel, ranges and noise are learned with at most 500. Then "auto" takes 1,000, 2,000, 4,000
        and so on, up to all rows, with kernel and ranges held and the noise chosen anew, until
        the log density of targets left out one at a time gains less than 0.01 nats, or less than its
        standard error. A number is taken as it is.
    num_steps : int, default=None
        Stochastic steps. None takes steps until bound, kernel and ranges stand still, 3,400 at most.
    batch_size : int, default=256
        Rows per stochastic step.
    device : str, default="auto"
        Where to compute: "cpu", "cuda", "cuda:1", … "auto" takes the GPU if there is one and rows × nodes ×
        inducing points × columns are at least 10⁹, else the CPU; `device_` says which.
    verbose : bool, default=False
        Whether to show progress: a bar in terminals and notebooks, a line now and then elsewhere.
    callback : callable, default=None
        A function of (step, bound), called at every iteration. It may raise KeyboardInterrupt to end the fit,
        which keeps the best so far, as Ctrl-C does.
    warm_start : bool, default=False
        Whether `fit` starts from the result of the last one.
    checkpoint : str, default=None
        A folder where `fit` keeps its progress. The same fit to the same data, by the same seed, resumes from
        there after it was killed. With the same number of threads the result is identical; with another
        number it warns, and the result agrees up to rounding.

    Attributes
    ----------
    kernel_ : gpytorch.kernels.Kernel
        The learned kernel of g.
    hyperparameters_ : list of Hyperparameter
        Lengthscales, variances and noise by name, in the units of the data.
    functional_ : Functional
        L, with f(x) = L_x g.
    features_ : Module, callable, transformer or None
        The features as they are used: the copy of the module, or the fitted transformer.
    orbit_ : Orbit or None
        The learned orbit; printing it shows its ranges.
    orbit_errors_ : dict of str to float
        The standard error of every learned range.
    orbit_intervals_ : dict of str to tuple
        The 95 % interval of the upper end of every learned range.
    likelihood_ : Likelihood
        The likelihood with its learned parameters, for standardised targets.
    noise_ : float
        The learned variance of Gaussian noise, in units of y squared.
    observation_noise_ : list of float
        The noise variance of each of the `observations`.
    inference_ : str
        The engine that was used.
    log_evidence_ : float
        log p(y) at the learned hyperparameters, in nats, hyperpriors not counted.
    evidence_kind_ : str
        "exact", or "lower bound" where inference is approximate.
    log_evidence_error_ : float
        How far `log_evidence_` may be off by the choice of nodes or draws; 0 where nothing is drawn. A lower
        bound is that of the average over the whole orbit, estimated from fresh draws without bias.
    evidence_terms_ : dict of str to float
        "fit", "complexity" and "constant", which sum to the evidence; exact inference only.
    certificate_ : Certificate
        After collapsed inference, unless an orbit is drawn at random: `lower` ≤ log p(y) ≤ `upper`, their
        `gap` and `num_inducing`. `log_evidence_` is then the lower end.
    num_inducing_ : int
        The inducing points that predictions use; not after exact inference.
    climb_ : list of dict
        What each number of inducing points gave: "num_inducing", the mean "loss" of a training row, its
        "gain" over the number before with its standard error "gain_error", and "seconds".
    inducing_stopped_by_ : str
        Why there are no more: "enough" (more hardly predict better), "complete" (one point per row),
        "given", "max_seconds", "memory", "failed" or "interrupted".
    search_ : list of dict
        What was tried on each number of nodes, where nodes were used.
    stopped_by_ : str
        Why the search on nodes ended, or what ended other learning early, "interrupted" or "time is over".
    converged_ : bool
        Whether learning from the best start converged.
    history_ : list of float
        The evidence, or its bound, plus the log density of hyperpriors, at every iteration of the best start.
    posterior_ : Posterior
        The posterior of g, which predicts any functional of it.
    jitter_ : float
        What the factorisation needed on the diagonal, usually 0; exact inference only.
    channels_ : str or None
        "first" or "last", where images had their channels; None where there are none.
    device_ : str
        The device of the fit and of predictions.
    n_features_in_ : int
        Number of features of a row.

    See Also
    --------
    SparseGPRegressor : Many rows, with a certificate of how exact the answer is.
    AutoGPRegressor : Searches for the kernel and the invariance.
    orbitwise.compare : Ranks invariances by their evidence.

    Examples
    --------
    A function of three columns whose order does not matter:

    >>> import numpy as np
    >>> from orbitwise import InvariantGPRegressor
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = np.sin(X).sum(axis=1)
    >>> plain = InvariantGPRegressor().fit(X, y)
    >>> symmetric = InvariantGPRegressor(invariance="permutation").fit(X, y)
    >>> symmetric.log_evidence_ > plain.log_evidence_
    True
    >>> new = np.array([[0.1, -0.5, 1.0], [1.0, 0.1, -0.5]])
    >>> mean, std = symmetric.predict(new, return_std=True)
    >>> bool(np.isclose(mean[0], mean[1]))
    True
    """

    n_features_in_: int

    stored = Stored(
        fitted={
            "inference_": TEXT,
            "model_": Field((RegressionModel,)),
            "observation_noise_": Field((list,), Field((int, float, np.ndarray)), least=0),
        },
        sometimes={
            "certificate_": Field((Certificate,)),
            "evidence_terms_": Field((dict,), Field((int, float)), is_record=True),
            "jitter_": REPORTED,
            "noise_": Field((int, float, np.ndarray), least=0),
        },
    )

    def __init__(
        self,
        kernel: Kernel | None = None,
        invariance: Invariance = None,
        *,
        features: Features | None = None,
        noise: float | None = None,
        likelihood: NoiseName | Likelihood = "gaussian",
        mean: Literal["zero", "constant", "linear"] = "zero",
        image_shape: Sequence[int] | None = None,
        channels: Channels = "auto",
        normalize_y: bool = True,
        one_sided: Literal["auto"] | bool = "auto",
        num_nodes: int | None = None,
        max_nodes: int | None = None,
        max_seconds: float | None = None,
        max_memory: float | None = None,
        max_iterations: int | None = None,
        num_restarts: int = 0,
        random_state: int | np.random.RandomState | None = None,
        inference: Engine = "auto",
        num_inducing: int | Literal["auto"] = "auto",
        num_steps: int | None = None,
        batch_size: int = 256,
        device: str = "auto",
        verbose: bool = False,
        callback: Callable[[int, float], None] | None = None,
        warm_start: bool = False,
        checkpoint: str | None = None,
    ) -> None:
        self.kernel = kernel
        self.invariance = invariance
        self.features = features
        self.noise = noise
        self.likelihood: NoiseName | Likelihood = likelihood
        self.mean = mean
        self.image_shape = image_shape
        self.channels: Channels = channels
        self.normalize_y = normalize_y
        self.one_sided: Literal["auto"] | bool = one_sided
        self.num_nodes = num_nodes
        self.max_nodes = max_nodes
        self.max_seconds = max_seconds
        self.max_memory = max_memory
        self.max_iterations = max_iterations
        self.num_restarts = num_restarts
        self.random_state = random_state
        self.inference: Engine = inference
        self.num_inducing: int | Literal["auto"] = num_inducing
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.device = device
        self.verbose = verbose
        self.callback = callback
        self.warm_start = warm_start
        self.checkpoint = checkpoint

    @property
    def latent_functional(self) -> Functional:
        """L of the model f = L g, before its orbit was frozen to predict."""
        return self.model_.latent.functional

    @learning("log_evidence_", "noise_")
    def fit(
        self,
        X: ArrayLike | Source,
        y: Targets | None = None,
        sample_weight: ArrayLike | None = None,
        observations: Sequence[Observation] = (),
    ) -> InvariantGPRegressor:
        """Learn kernel, noise, mean and ranges by the evidence of y.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Rows, or images, signals and point clouds with dimensions of their own.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            How many repetitions of a row each row represents.
        observations : sequence of tuple, default=()
            Observations of other functionals of f beside its values: (functional, inputs, targets, noise
            variance or None to learn it), for slopes, differences or averages. A functional of several rows
            per input, such as `Gradient()`, takes targets [n, rows], or [n, rows, outputs].

        Returns
        -------
        InvariantGPRegressor
            The fitted estimator.
        """
        x, targets, weight, is_vector = check_training(self, X, y, sample_weight)
        if observations:
            self.form_.require_channels_first("Observations of other functionals")
        likelihood = self._checked_likelihood(targets, weight, observations)
        is_gaussian = isinstance(likelihood, Gaussian)
        generator, previous = self._generator(), self._previous(x.shape[1])
        functional, x = self._begin(x, previous)
        rows = as_inputs(x)
        points = num_points(functional, rows) if self.num_inducing == "auto" else None
        self.inference_ = self._engine(len(weight), points, is_gaussian, observations)
        if self.inference_ == "exact":
            x = held_rows(rows).numpy()
        kernel = self.kernel if previous is None else previous.process.kernel.cpu()
        model = prepare(
            x,
            targets,
            weight,
            # engines freeze anew; here a few nodes show what the functional is like
            freeze_at(functional, 2),
            kernel,
            self.noise,
            self.mean,
            self.normalize_y,
            self.one_sided,
            observations,
            is_image=self.form_.image_shape is not None,
            likelihood=likelihood if isinstance(self.likelihood, Likelihood) or not is_gaussian else None,
            is_vector=is_vector,
        ).at(functional)
        if self.max_iterations != 0:
            warn_of_few_targets(type(self).__name__, model)
        if previous is not None:
            _resume(model.latent, previous)
        elif kernel is None and functional.is_identity and not observations and self.max_iterations != 0:
            is_sparse = self.inference_ != "exact" and self.num_inducing != "auto"
            begin_at_best(model, int(self.num_inducing) if is_sparse else None)
        self.target_scale_ = model.target_scale
        self._choose_device(model.latent.functional, model.observations[0].x)
        self.model_ = model = model.to(self.device_)
        if self.inference_ == "exact":
            result = self._run(model.latent, model.observations, generator)
        else:
            result = self._fit_sparse(x, targets, weight, generator)
        self._store(result.in_units(-model.log_unit))
        return self

    @property
    def likelihood_(self) -> Likelihood:
        """The likelihood of standardised targets, with its learned parameters."""
        check_is_fitted(self)
        if self.noise == 0:
            raise AttributeError("With noise=0 there is no likelihood.")
        return self._likelihood

    def _checked_likelihood(
        self, y: NDArray[np.float64], weight: NDArray[np.float64], observations: Sequence[object]
    ) -> Likelihood:
        """The likelihood of the targets, which suits them and the other settings."""
        likelihood = regression_likelihood(self.likelihood)
        if isinstance(likelihood, Gaussian):
            if isinstance(self.likelihood, Likelihood) and (likelihood.is_fixed or self.noise is not None):
                raise ValueError(
                    "An instance of Gaussian gives the start of learned noise. To fix the variance, pass it "
                    "as noise=…, with likelihood='gaussian'."
                )
            if not likelihood.shares_curvature:
                raise ValueError(
                    "All outputs share one noise variance here: leave out num_outputs of Gaussian, or fit "
                    "the outputs one by one."
                )
            return likelihood
        name = type(likelihood).__name__
        reasons = {
            "observations of other functionals": len(observations) > 0,
            "sample weights other than 1": bool((weight != 1).any()),
            f"noise={self.noise!r} (start from an instance, such as StudentT(scale=0.1), instead)": (
                self.noise is not None
            ),
            "inference='exact'": self.inference == "exact",
        }
        if refused := [reason for reason, holds in reasons.items() if holds]:
            raise ValueError(
                f"The likelihood {name} does not take {', '.join(refused)}; Gaussian noise does."
            )
        likelihood.check_targets(torch.from_numpy(y))
        return likelihood

    def _engine(
        self,
        num_rows: int,
        points: int | None,
        is_gaussian: bool,
        observations: Sequence[object],
    ) -> EngineName:
        """The engine for these data: by the number of rows, but exact where no other one serves."""
        if not is_gaussian:
            return engine_for(num_rows, exact_serves=False) if self.inference == "auto" else self.inference
        reasons = {"observations of other functionals": len(observations) > 0, "noise=0": self.noise == 0}
        needs_exact = [reason for reason, holds in reasons.items() if holds]
        if self.inference in ("collapsed", "variational"):
            if needs_exact:
                reason = ", ".join(needs_exact)
                raise ValueError(
                    f"inference={self.inference!r} does not take {reason}: use inference='exact'."
                )
            return self.inference
        return "exact" if self.inference == "exact" or needs_exact else engine_for(num_rows, True, points)

    def _fit_sparse(
        self,
        x: Rows,
        targets: NDArray[np.float64],
        weight: NDArray[np.float64],
        generator: torch.Generator,
    ) -> FitResult:
        """The sparse engine of `inference_`; a collapsed bound of exact rows gets a certificate.

        Equal rows are merged for the collapsed bound of Gaussian noise alone, which knows how far their
        targets are from the mean. Other rows stay in the order in which they came.
        """
        model = sparse_form(self.model_)
        if self.noise is None:
            self.model_ = model
        latent, rows, merged = model.latent, as_inputs(x), model.observations[0]
        is_weighted = bool((weight != 1).any())
        is_merged = len(merged) < len(x) or is_weighted
        is_collapsed = isinstance(latent.likelihood, Gaussian) and self.inference_ == "collapsed"
        if not (is_collapsed and is_merged):
            standardised = model.target_scale.standardised(torch.from_numpy(targets))
            each, scatter = None, None
            if is_weighted:
                # a row of weight w is w rows with the same target
                each, scatter = torch.from_numpy(weight), torch.zeros_like(standardised)
            merged = Observations(merged.functional, rows, standardised, each, scatter).to(self.device_)
        observations, generator = (merged,), generator_on(self.device_, generator)
        if self.inference_ == "variational":
            return self._run(latent, observations, generator)
        held = latent.learned if self.max_iterations == 0 else []
        for parameter in held:
            parameter.requires_grad_(False)
        result = self._run(latent, observations, generator)
        for parameter in held:
            parameter.requires_grad_(True)
        objective = result.objective
        if isinstance(objective, SparseModel) and not latent.is_drawn:
            num_atoms = len(merged) * objective.observations.num_atoms
            objective = self._placed(objective, result)
            result = replace(result, certificate=certify(objective, num_atoms <= REFINED_ATOMS))
        return replace(result, converged=result.converged and not held, parameters=latent.learned)

    def _placed(self, learned: SparseModel, result: FitResult) -> SparseModel:
        """The model with which a fit ended, which may have more inducing points than the one that learned."""
        posterior = result.posterior
        assert isinstance(posterior, SparsePosterior)
        if len(posterior.lower) == learned.num_inducing or result.noise is None:
            return learned
        likelihood = self.model_.with_noise(result.noise).latent.likelihood
        placed = SparseModel(learned.process, learned.observations, likelihood)
        assert isinstance(posterior.inducing, torch.Tensor)
        placed.place_inducing(posterior.inducing)
        return placed

    @torch.no_grad()
    def _store(self, result: FitResult) -> None:
        if result.noise is not None and not isinstance(result.posterior, ExactPosterior):
            self.model_ = self.model_.with_noise(result.noise)
        self._set_result(result, self.model_.latent.process)
        for name in ("noise_", "evidence_terms_", "jitter_"):
            vars(self).pop(name, None)
        if isinstance(self._likelihood, Gaussian):
            self.noise_ = self.target_scale_.variance(self._standardised_noise())
        self.observation_noise_ = self.model_.other_noise()
        if isinstance(result.posterior, ExactPosterior):
            terms = self.model_.evidence(result.posterior)
            parts = {"fit": terms.fit, "complexity": terms.complexity, "constant": terms.constant}
            self.evidence_terms_, self.jitter_ = parts, terms.jitter


def _resume(model: LatentModel, previous: LatentModel) -> None:
    """Start where an earlier model ended: its likelihood and mean (kernel and orbit are shared already)."""
    mean, before = model.process.mean_module, previous.process.mean_module
    pairs = [(model.likelihood, previous.likelihood), (mean, before)]
    for new, old in pairs:
        is_given = any(isinstance(each, Gaussian) and each.is_fixed for each in (new, old))
        if type(new) is type(old) and not is_given:
            new.load_state_dict(old.state_dict())
