"""InvariantGPRegressor: Gaussian-process regression with an invariance in the prior."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Literal, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from orbitwise.declarations import REPORTED, TEXT, Field, Stored
from orbitwise.estimators.engines import Engine, Fit, engine_for
from orbitwise.estimators.estimator import LearnedOrbit, RegressionPredictions, learning
from orbitwise.estimators.forms import Channels, input_shape
from orbitwise.estimators.invariances import Invariance, functional_of
from orbitwise.estimators.learned_ranges import adopt, freeze_at
from orbitwise.estimators.likelihoods import NoiseName
from orbitwise.estimators.regression_engines import (
    check_settings,
    fit_model,
    fit_sparse,
    other_likelihood,
    place,
    regression_engine,
    resume,
    sparse_problem,
)
from orbitwise.estimators.regression_model import Observation, RegressionModel, TargetScale, prepare
from orbitwise.estimators.validation import check_training
from orbitwise.functionals.functional import Functional
from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.sparse.certificate import Certificate
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood


@final
class InvariantGPRegressor(
    LearnedOrbit, RegressionPredictions, RegressorMixin, MultiOutputMixin, BaseEstimator
):
    """Gaussian-process regression of a function f(x) = L_x g that is invariant by construction.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel, default=None
        Kernel of the base process g, for standardised targets if `normalize_y`; None takes a scaled RBF
        kernel that starts at the scale of the data. Its hyperparameters are learned by the evidence, its
        priors and constraints respected; `kernel` is not changed.
    invariance : None, str, Orbit or Functional, default=None
        What f should not care about: a name ("permutation", "sign", "negation", "cyclic", "flip",
        "quarter_turn", "flip+quarter_turn", or of learnable moves of images "rotation", "affine", …), an
        orbit to average over, or any functional of g.
    noise : float, default=None
        Noise variance in units of y squared; None learns it. Gaussian noise only.
    likelihood : {"gaussian", "student_t", "laplace", "poisson"} or Likelihood, default="gaussian"
        How targets scatter about f: Gaussian noise; noise with heavy tails, which outliers do not mislead;
        or counts of rate exp f. Any but Gaussian noise is fitted by a variational lower bound on the
        evidence, which averages a drawn orbit over fixed nodes. Its parameters are learned, and start as
        given by an instance, for standardised targets if `normalize_y`.
    mean : {"zero", "constant", "linear"}, default="zero"
        Mean function of g, learned with the kernel. With `normalize_y`, "zero" means the mean of the targets.
    image_shape : tuple of int, default=None
        (height, width), or three sizes in the order of `channels`, for invariances of images when X has two
        dimensions.
    channels : {"auto", "first", "last"}, default="auto"
        Where images [n, …], and three sizes of `image_shape`, have their channels. "auto" takes the axis of
        1, 3 or 4 at either end and refuses what could be both. Orbits, functionals and kernels always see
        rows with the channels first.
    normalize_y : bool, default=True
        Standardise targets, by median and quartiles under heavy tails; of counts, f is centred at the
        logarithm of their mean. The evidence is always that of the targets as given.
    one_sided : {"auto", True, False}, default="auto"
        Whether one side of a group average is enough, see `orbitwise.process.Process`.
    num_nodes, max_nodes, max_seconds : int, int, float, default=None
        Exact inference averages a drawn orbit over fixed nodes, the same for every seed. They double until
        neither the evidence nor the ranges would move on others, or `max_nodes` are used (None takes as many
        as one evaluation can do in some seconds), or `max_seconds` have passed; the best so far is then kept.
        `num_nodes` takes that many in the end. Collapsed inference takes `num_nodes`, 16 by default.
    max_iterations, num_restarts : int, default=None, 0
        Iterations at most (None takes 200, or 40 for each ascent where nodes are used) and additional random
        starts, exact or collapsed.
    random_state : int, RandomState or None, default=None
        Seeds restarts, inducing points and batches.
    inference : {"auto", "exact", "collapsed", "variational"}, default="auto"
        By size: exact to 1,500 rows, collapsed to 5,000, then stochastic. Always exact, and only so, with
        `observations` or noise=0. Never exact with other likelihoods than Gaussian noise.
    num_inducing, num_steps, batch_size : int, default=500, None, 256
        Inducing points of collapsed and variational inference; stochastic steps, and rows per step. None
        takes steps until bound, kernel and ranges stand still, 3,400 at most. Collapsed inference tries
        points of greatest remaining variance, centres of clusters and random ones, and keeps those of the
        best bound.
    device, verbose, callback, warm_start : default="cpu", False, None, False
        Where to compute; whether to print; a function of (step, bound); whether `fit` goes on from the last.
    checkpoint : str, default=None
        A folder where `fit` keeps its progress. The same fit to the same data, by the same seed, goes on from
        there after it was killed, and ends with the same bits, if as many threads work on it: with another
        number it warns, and ends with the same result up to rounding.

    Attributes
    ----------
    kernel_ : the learned kernel. functional_ : L. likelihood_ : the likelihood, for standardised targets.
    noise_ : the learned variance of Gaussian noise.
    observation_noise_ : the noise variance of each of the `observations`.
    inference_ : the engine that was used.
    channels_ : "first" or "last", where images had their channels; None where there are none.
    log_evidence_, evidence_kind_ : log p(y) at the learned hyperparameters, hyperpriors not counted, which is
        "exact", or a "lower bound" on it.
    log_evidence_error_ : how far it may be off by the choice of nodes or draws, 0 where nothing is drawn. A
        lower bound is that of the average over the whole orbit, estimated from fresh draws without bias.
    orbit_errors_, orbit_intervals_ : the standard error of every learned range, and the interval that holds
        its upper end with 95 %.
    search_, stopped_by_ : what was tried on each number of nodes, where nodes were used, and why that ended.
    certificate_ : after collapsed inference, unless an orbit is drawn at random: `lower` ≤ log p(y) ≤
        `upper`, their `gap` and `num_inducing`. `log_evidence_` is then the lower end.
    evidence_terms_ : its "fit", "complexity" and "constant", which sum to it; exact only.
    jitter_ : what the factorisation needed, usually 0; exact only.
    converged_, history_ : of the best start. posterior_ : the posterior of g.
    """

    n_features_in_: int

    stored = Stored(
        fitted={
            "_functional": Field((Functional,)),
            "_model": Field((RegressionModel,)),
            "inference_": TEXT,
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
        max_iterations: int | None = None,
        num_restarts: int = 0,
        random_state: int | np.random.RandomState | None = None,
        inference: Engine = "auto",
        num_inducing: int = 500,
        num_steps: int | None = None,
        batch_size: int = 256,
        device: str = "cpu",
        verbose: bool = False,
        callback: Callable[[int, float], None] | None = None,
        warm_start: bool = False,
        checkpoint: str | None = None,
    ) -> None:
        self.kernel = kernel
        self.invariance = invariance
        self.noise = noise
        self.likelihood: NoiseName | Likelihood = likelihood
        self.mean = mean
        self.image_shape = image_shape
        self.channels: Channels = channels
        self.normalize_y = normalize_y
        self.one_sided = one_sided
        self.num_nodes = num_nodes
        self.max_nodes = max_nodes
        self.max_seconds = max_seconds
        self.max_iterations = max_iterations
        self.num_restarts = num_restarts
        self.random_state = random_state
        self.inference = inference
        self.num_inducing = num_inducing
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.device = device
        self.verbose = verbose
        self.callback = callback
        self.warm_start = warm_start
        self.checkpoint = checkpoint

    @learning("log_evidence_", "noise_")
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        observations: Sequence[Observation] = (),
    ) -> InvariantGPRegressor:
        """Learn kernel, noise and mean by the evidence of y.

        A sample weight counts repetitions of its row. `observations` adds observations of other functionals
        of f, as (functional, inputs, targets, noise variance or None to learn it): slopes, differences,
        averages. A functional of several rows an input, such as `Gradient()`, takes targets [n, rows], or
        [n, rows, outputs].
        """
        x, targets, weight, is_vector = check_training(self, X, y, sample_weight)
        if observations:
            self.form_.require_channels_first("Observations of other functionals")
        check_settings(self)
        likelihood = other_likelihood(self, targets, weight, observations)
        if likelihood is None:
            engine = regression_engine(self, len(weight), observations)
        else:
            engine = engine_for(len(x), exact_serves=False) if self.inference == "auto" else self.inference
        seed = int(check_random_state(self.random_state).randint(2**31))
        generator = torch.Generator().manual_seed(seed)
        previous = getattr(self, "_model", None) if self.warm_start else None
        if previous is not None and previous.x.shape[1] == x.shape[1]:
            functional, kernel = self._functional.cpu(), previous.process.kernel.cpu()
        else:
            functional = copy.deepcopy(functional_of(self.invariance, self.n_features_in_, input_shape(self)))
            previous, kernel = None, self.kernel
        self._functional = functional.double()
        self._set_orbit(functional, x)
        x = x - self.form_.background
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
            likelihood=likelihood,
        )
        if previous is not None:
            resume(model, previous)
        place(model, functional, self.device)
        self.inference_ = engine
        start = self._taken_start()
        if start is not None:
            before = start.member
            adopt((functional, model.process), (before._functional, before._model.process))
            adopt((model.raw_noise,), (before._model.raw_noise,))
        if engine == "exact":
            fit = fit_model(self, model, functional, generator, self._report, start)
            parameters = list(model.parameters())
        else:
            problem = sparse_problem(model, functional, x, targets, self.device, generator)
            fit, parameters = fit_sparse(self, model, problem, self._report), problem.parameters
        self.target_scale_ = TargetScale(model.shift, model.scale, is_vector)
        self._store(model, fit)
        self._set_objective(fit.objective, parameters)
        self._set_search(fit.search)
        self._set_half_bound(fit.half_bound)
        return self

    @torch.no_grad()
    def evidence_on(self, freeze: Callable[[Functional], Functional]) -> float:
        """The exact evidence of the training data on other nodes."""
        return self._model.evidence(self._model.posterior(freeze(self._functional))).value

    def _standardised_noise(self) -> torch.Tensor:
        return self._model.noise()

    def _other_likelihood(self) -> Likelihood | None:
        check_is_fitted(self)
        return self._model.likelihood

    @property
    def likelihood_(self) -> Likelihood:
        """The likelihood of standardised targets, with its learned parameters."""
        check_is_fitted(self)
        if self._model.likelihood is not None:
            return self._model.likelihood
        if self.noise == 0:
            raise AttributeError("Targets without noise have no likelihood.")
        noise = self._model.noise().detach()
        return Gaussian(noise[0].item())

    def _report(self, step: int, bound: float) -> None:
        if self.callback is not None:
            self.callback(step, bound)
        if self.verbose:
            print(f"{self.inference_} {step:5d}  {bound:,.1f}")

    def _store(self, model: RegressionModel, fit: Fit) -> None:
        self._model = model
        self.posterior_, self.functional_ = fit.posterior, fit.functional
        self.kernel_ = model.process.kernel
        with torch.no_grad():
            self.noise_, *self.observation_noise_ = (
                self.target_scale_.variance(noise) for noise in (model.noise(), *model.extra_noise())
            )
        if model.likelihood is not None:
            del self.noise_
        self.log_evidence_, self.evidence_kind_ = fit.log_evidence, fit.kind
        self.log_evidence_error_ = fit.standard_error
        self.converged_, self.history_ = fit.converged, fit.history
        vars(self).pop("certificate_", None)
        if fit.certificate is not None:
            self.certificate_ = fit.certificate
        if isinstance(fit.posterior, ExactPosterior):
            terms = model.evidence(fit.posterior)
            parts = {"fit": terms.fit, "complexity": terms.complexity, "constant": terms.constant}
            self.evidence_terms_, self.jitter_ = parts, terms.jitter
        else:
            vars(self).pop("evidence_terms_", None)
            vars(self).pop("jitter_", None)
