"""InvariantGPClassifier: Gaussian-process classification that learns what it should not care about."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, cast, final, get_args

import numpy as np
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from orbitwise.declarations import NUMBER, REPORTED, REPORTED_ARRAY, TEXT, Field, Stored, require
from orbitwise.estimators.convergence import iterations_of, learning
from orbitwise.estimators.engines import (
    Engine,
    EngineName,
    Tilts,
    check_engine,
    engine_for,
    num_points,
)
from orbitwise.estimators.estimator import EngineEstimator, resolve_likelihood
from orbitwise.estimators.invariances import Invariance
from orbitwise.estimators.kernel_choice import LEARNED_ROWS, MOST_COLUMNS, KernelChoice, choose_kernel
from orbitwise.estimators.predicting import input_parts, joined
from orbitwise.estimators.regression_model import RegressionModel, TargetScale
from orbitwise.estimators.sources import Source, Targets
from orbitwise.estimators.training_data import Rows, check_labelled
from orbitwise.estimators.validation import Channels, answering
from orbitwise.functionals.averages import features_of
from orbitwise.functionals.features import Features
from orbitwise.functionals.functional import Evaluation, Functional
from orbitwise.inference.calibration import (
    NoiseOfLabels,
    cautious_scale,
    cross_entropy,
    evenly_of_classes,
    noise_of_labels,
    warn_of_one_class,
)
from orbitwise.inference.fit_result import FitResult
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.stored_rows import Inputs, as_inputs, typical_rows
from orbitwise.kernels.bases import default_kernel
from orbitwise.likelihoods.bernoulli import Bernoulli
from orbitwise.likelihoods.dirichlet import Dirichlet
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.likelihoods.softmax import Softmax
from orbitwise.process.process import Moments, Process

ROWS_AT_ONCE = 512
LabelCoding = Literal["one_hot", "stick_breaking", "dirichlet", "softmax"]
ONE_HOT_NOISE = 0.01
LABEL_COUNT, DOUBT = 100.0, 0.2
"""Labels that one of several classes counts as in the beginning, and the part of them that is wrong."""
MOST_CHECKED = 1000
"""About the most training rows that are looked at for being predicted to be of one class."""
GIVE = "Scale the columns of X, take another kernel or invariance, or label more rows"
"""What to do if one class is predicted for all rows."""


def class_likelihood(given: str | Likelihood, num_classes: int) -> Likelihood:
    """The likelihood of labels, whose `encode_labels` makes targets of them; not shared with the caller."""
    named: dict[str, Callable[[], Likelihood]] = {
        "one_hot": partial(Gaussian, ONE_HOT_NOISE),
        "stick_breaking": Bernoulli,
        "dirichlet": Dirichlet,
        "softmax": partial(Softmax, num_classes, max(256, 4 * num_classes)),
    }
    if num_classes > 2:
        named["stick_breaking"] = partial(Bernoulli, LABEL_COUNT, DOUBT, learnable=True)
        named["dirichlet"] = partial(Dirichlet, count=LABEL_COUNT, learnable=True)
    return resolve_likelihood(given, named)


def class_probabilities(
    likelihood: Likelihood,
    mean: Float[torch.Tensor, "n c"],
    variance: Float[torch.Tensor, "n c"],
    scale: float,
) -> Float[torch.Tensor, "n k"]:
    """Class probabilities from the posterior moments of f: a softmax of `scale` times the scores."""
    scores = likelihood.class_scores(Moments(mean, variance, mean.square() + variance))
    return torch.softmax(scale * scores, dim=1)


@final
class InvariantGPClassifier(EngineEstimator, ClassifierMixin, BaseEstimator):
    """Classification by a Gaussian process whose invariance is learned by the evidence.

    Every class has a function f(x) = L_x g, where g is a Gaussian process and L_x averages g over everything
    that x may be moved to. Kernel and ranges of the moves are those under which the training labels are most
    probable (the evidence); no validation set is needed.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel, default=None
        Kernel of the base process g. None takes a scaled RBF kernel that starts at the scale of the data.
        Without an invariance, None chooses by leave-one-out on 500 rows at most: RBF, Matérn-5/2 or rational
        quadratic; columns as they are, in units of their spread, or with a lengthscale each (up to 20).
    invariance : None, str, Orbit or Functional, default=None
        What f should not care about: a name such as "affine+deformation", "rotation" or "signal:shift" (the
        page "Names of invariances" has all), an orbit to average over, or any functional of g. Names of
        images need `image_shape` unless X has image dimensions.
    features : torch.nn.Module, callable or transformer, default=None
        A fixed map φ of inputs to features, on which the kernel lives: f(x) averages g(φ(t x)) over the moves
        t. A module (copied, in evaluation mode) sees images as [n, channels, height, width], and ranges are
        learned through it. A function takes and gives an array or a tensor, a scikit-learn transformer takes
        rows; both have no derivatives, so ranges cannot be learned through them. An unfitted transformer is
        fitted to the training rows. `load` asks for φ again, because it is code.
    likelihood : {"one_hot", "stick_breaking", "dirichlet", "softmax"} or Likelihood, default="one_hot"
        How labels are observed. "one_hot": Gaussian noise on one-hot codes; by far the quickest, and on most
        sets the best. "stick_breaking": Pólya-Gamma logits of sticks, which is logistic regression for two
        classes: for those its evidence is that of the labels themselves. "dirichlet": Gaussian noise of
        several sizes on logarithms, nearly as good as "one_hot". "softmax": one f per class, slow, whose
        bound averages a drawn orbit over fixed nodes; for few rows. Leave-one-out on the training set
        calibrates the probabilities of all of them. An instance is copied.
    noise : {"auto", "evidence", "leave_one_out"}, default="auto"
        How the noise variance is chosen with which labels are predicted from one-hot codes. Labels are not
        Gaussian, so the noise with the least leave-one-out log loss of training labels often predicts better
        than that of the evidence, above all with thousands of rows. "auto" takes it if it lowers that loss by
        more than its standard error. With exact inference on up to 1,500 rows, a kernel that was chosen by
        leave-one-out is learned in the same way, together with its noise. With inducing points, the
        lengthscales that predict labels are chosen likewise, unless this is "evidence": `posterior_.process`
        has them, and `kernel_` those of the evidence. In any case `log_evidence_` is that at the noise and
        the lengthscales of the evidence.
    image_shape : tuple of int, default=None
        (height, width), or three sizes in the order of `channels`, of an image in a row of X.
    channels : {"auto", "first", "last"}, default="auto"
        Where images [n, …], and three sizes of `image_shape`, have their channels. "auto" takes the axis of
        1, 3 or 4 at either end and refuses what could be both. Orbits, functionals and kernels always see
        rows with the channels first.
    inference : {"auto", "exact", "collapsed", "variational"}, default="auto"
        "auto" chooses by size. Without an orbit that is drawn, inference is exact up to 8,000 rows (times the
        elements of a finite orbit). Otherwise, or where `num_inducing` is a number, it is exact to 1,500
        rows, collapsed to 5,000, then stochastic variational inference.
    num_inducing : int or "auto", default="auto"
        Inducing points of collapsed and variational inference: g is summarised by its values at these
        points. Kernel, ranges and noise are learned with at most 500. Then "auto" takes 1,000, 2,000, 4,000
        and so on, up to all rows, with kernel and ranges held and the noise chosen anew, until the
        leave-one-out log loss of labels gains less than 2 %, or less than its standard error. A number is
        taken as it is.
    num_nodes : int, default=None
        Fixed nodes over which exact inference averages a drawn orbit, the same for every seed. None doubles
        them until other nodes would change neither evidence nor ranges (collapsed inference takes 16).
    max_nodes : int, default=None
        The most nodes that doubling takes. None takes as many as one evaluation can do in some seconds. Raise
        it if a ConvergenceWarning says that ranges did not converge.
    max_seconds : float, default=None
        Seconds after which no step begins, with any engine, and neither nodes nor inducing points double any
        more; the best so far is then kept, and a ConvergenceWarning says so. None takes the time it needs.
    max_memory : float, default=None
        Bytes that more inducing points may take. None takes what is free on the machine, or the GPU.
    max_iterations : int, default=None
        Iterations at most. None takes 200, or 40 for each ascent where nodes are used.
    num_restarts : int, default=0
        Additional random starts.
    num_steps : int, default=None
        Stochastic steps. None takes them until bound, kernel and ranges have converged, 3,400 at most.
    batch_size : int, default=256
        Rows per stochastic step.
    tilts : {"remembered", "recognition"}, default="remembered"
        Where stochastic inference with likelihood="stick_breaking" takes the free parameter of each label's
        Pólya-Gamma bound from: earlier visits of that label, or a recognition network of input and label that
        is trained with the bound.
    random_state : int, RandomState or None, default=None
        Seeds what is drawn; exact inference draws nothing but additional starts.
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
    classes_ : ndarray
        The classes, in the order of the columns of `predict_proba`.
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
    kernel_choice_ : str
        What kernel was chosen and what else was tried, where `kernel=None` chose.
    likelihood_ : Likelihood
        The likelihood with its learned parameters.
    noise_ : float
        The noise variance of one-hot codes with which labels are predicted; that of the evidence is
        `likelihood_.noise`. With likelihood="one_hot" only.
    inference_ : str
        The engine that was used.
    log_evidence_ : float
        The log probability of the training labels at the learned hyperparameters, in nats.
    evidence_kind_ : str
        "exact", or "lower bound" where inference is approximate.
    log_evidence_error_ : float
        How far `log_evidence_` may be off by the choice of nodes or draws. A lower bound is that of the
        average over the whole orbit, estimated from fresh draws without bias, with its standard error.
    leave_one_out_log_loss_ : float
        The mean log loss of every training label, predicted from all others at the learned hyperparameters.
        It calibrates the probabilities, and compares likelihoods, which the evidence cannot. It is a little
        optimistic, because the same labels chose noise and lengthscales.
    certificate_ : Certificate
        After collapsed inference, unless an orbit is drawn at random: a bracket of the evidence.
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
        Whether learning converged.
    history_ : list of float
        The evidence, or its bound, at every iteration.
    posterior_ : Posterior
        The posterior of g.
    channels_ : str or None
        "first" or "last", where images had their channels; None where there are none.
    device_ : str
        The device of the fit and of predictions.
    n_features_in_ : int
        Number of features of a row.

    See Also
    --------
    orbitwise.compare : Ranks invariances by their evidence.
    InvariantSVC : Few labels, and many rows without one.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from orbitwise import InvariantGPClassifier
    >>> images, labels = load_digits(return_X_y=True)
    >>> images = images.reshape(-1, 8, 8)
    >>> model = InvariantGPClassifier(invariance="rotation", num_nodes=4).fit(images[:30], labels[:30])
    >>> sorted(model.orbit_.learned())
    ['angle']
    >>> model.predict_proba(images[50:53]).shape
    (3, 10)
    """

    stored = Stored(
        fitted={
            "classes_": REPORTED_ARRAY,
            "inference_": TEXT,
            "model_": Field((RegressionModel,)),
            "scale_": NUMBER,
        },
        sometimes={"kernel_choice_": TEXT, "leave_one_out_log_loss_": REPORTED, "noise_": NUMBER},
    )

    def __init__(
        self,
        kernel: Kernel | None = None,
        invariance: Invariance = None,
        *,
        features: Features | None = None,
        likelihood: LabelCoding | Likelihood = "one_hot",
        noise: NoiseOfLabels = "auto",
        image_shape: Sequence[int] | None = None,
        channels: Channels = "auto",
        inference: Engine = "auto",
        num_inducing: int | Literal["auto"] = "auto",
        num_nodes: int | None = None,
        max_nodes: int | None = None,
        max_seconds: float | None = None,
        max_memory: float | None = None,
        max_iterations: int | None = None,
        num_restarts: int = 0,
        num_steps: int | None = None,
        batch_size: int = 256,
        tilts: Tilts = "remembered",
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
        callback: Callable[[int, float], None] | None = None,
        warm_start: bool = False,
        checkpoint: str | None = None,
    ) -> None:
        self.kernel = kernel
        self.invariance = invariance
        self.features = features
        self.likelihood = likelihood
        self.noise: NoiseOfLabels = noise
        self.image_shape = image_shape
        self.channels: Channels = channels
        self.inference: Engine = inference
        self.num_inducing: int | Literal["auto"] = num_inducing
        self.num_nodes = num_nodes
        self.max_nodes = max_nodes
        self.max_seconds = max_seconds
        self.max_memory = max_memory
        self.max_iterations = max_iterations
        self.num_restarts = num_restarts
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.tilts: Tilts = tilts
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.callback = callback
        self.warm_start = warm_start
        self.checkpoint = checkpoint

    def check_parts(self) -> None:
        super().check_parts()
        count, likelihood = len(self.classes_), self.model_.latent.likelihood
        told = class_likelihood(self.likelihood, count)
        codes = likelihood.encode_labels(torch.zeros(1, dtype=torch.long), count)
        fits = type(told) is type(likelihood) and codes.shape[1] == self.posterior_.num_outputs
        require(fits, "outputs of other classes")
        require(self.inference_ in get_args(EngineName), "an unknown kind of inference")

    @property
    def latent_functional(self) -> Functional:
        """L of the model f = L g, before its orbit was frozen to predict."""
        return self.model_.latent.functional

    @learning("log_evidence_", "noise_")
    def fit(self, X: ArrayLike | Source, y: Targets | None = None) -> InvariantGPClassifier:
        """Learn kernel, orbit and noise by the evidence of the training labels.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Rows, or images, signals and point clouds with dimensions of their own.
        y : array-like of shape (n_samples,)
            Labels, of at least two classes.

        Returns
        -------
        InvariantGPClassifier
            The fitted estimator.
        """
        x, labels = check_labelled(self, X, y)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                "Classification needs at least two classes, but the labels hold one class only: "
                f"{self.classes_.tolist()[0]!r}."
            )
        prepared, choice = self._prepared(x, torch.from_numpy(codes))
        model, (rows,) = prepared.latent, prepared.observations
        if self.noise == "leave_one_out" and not isinstance(model.likelihood, Gaussian):
            raise ValueError("noise='leave_one_out' goes with likelihood='one_hot' only.")
        check_engine(self.inference, model.likelihood)
        points = num_points(model.functional, rows.x) if self.num_inducing == "auto" else None
        auto = engine_for(len(rows), isinstance(model.likelihood, Gaussian), points)
        engine = auto if self.inference == "auto" else self.inference
        if self.tilts != "remembered" and (engine != "variational" or not model.likelihood.needs_tilt):
            raise ValueError(
                f"tilts={self.tilts!r} needs likelihood='stick_breaking' and inference='variational': set "
                "both, or leave tilts out."
            )
        self.inference_ = engine
        self._choose_device(model.functional, rows.x)
        generator, self.model_ = self._generator(self.device_), prepared.to(self.device_)
        model, (rows,) = self.model_.latent, self.model_.observations
        is_one_hot = isinstance(model.likelihood, Gaussian)
        numbers = torch.from_numpy(codes).to(self.device_)
        by = self.noise if is_one_hot else "evidence"
        labels_of_codes = numbers if is_one_hot else None
        result = self._run(model, self.model_.observations, generator, labels_of_codes, by)
        by_labels = engine == "exact" and self.noise != "evidence" and len(rows) <= LEARNED_ROWS
        self._store(result, numbers, choice if by_labels else None)
        some = evenly_of_classes(numbers, MOST_CHECKED)
        said = self._probabilities(*self._moments_at(rows.x[some])).argmax(1).cpu()
        has_no_label = torch.zeros_like(said, dtype=torch.bool)
        name, given = type(self).__name__, numbers[some].cpu()
        warn_of_one_class(name, self.classes_, said, has_no_label, given, GIVE)
        return self

    def predict(self, X: ArrayLike | Source) -> NDArray[Any]:
        """The most probable class of every row; data sets and large arrays are read in blocks."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]

    @answering
    def predict_proba(self, X: ArrayLike | Source) -> NDArray[np.float64]:
        """The probability of every class, in the order of `classes_`."""
        if (parts := input_parts(self, X)) is not None:
            return joined(self.predict_proba(part) for part in parts)
        return self._probabilities(*self.moments(cast(ArrayLike, X))).cpu().numpy()

    def _probabilities(self, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return class_probabilities(self.likelihood_, mean, variance, self.scale_)

    @property
    def likelihood_(self) -> Likelihood:
        """The likelihood with its learned parameters."""
        check_is_fitted(self)
        return self.model_.latent.likelihood

    def moments(self, X: ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        """The posterior mean and variance of f for every row and output, as tensors [n, outputs]."""
        return self._moments_at(self._inputs(X))

    def _moments_at(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        moments = self._row_moments(self.functional_.atoms(part) for part in x.split(ROWS_AT_ONCE))
        return moments.mean, moments.variance

    def _prepared(self, x: Rows, codes: torch.Tensor) -> tuple[RegressionModel, KernelChoice | None]:
        """The model to be learned, codes of the labels as its targets, and how its kernel was chosen."""
        likelihood = class_likelihood(self.likelihood, len(self.classes_))
        targets = likelihood.encode_labels(codes, len(self.classes_))
        latent = self._previous(x.shape[1])
        functional, inputs = self._begin(x, latent)
        rows = Observations(Evaluation(), as_inputs(inputs), targets)
        choice = self._kernel_choice(rows.x, codes, functional, latent)
        if latent is None:
            features = None if self.features is None else features_of(functional)
            some = typical_rows(rows.x)
            points = some if features is None else features(some)
            is_ard = functional.is_identity and x.shape[1] <= MOST_COLUMNS
            base = default_kernel(points, is_ard) if choice is None else choice.start()
            process = Process(None, base if self.kernel is None else copy.deepcopy(self.kernel).double())
            latent = LatentModel(process, functional, likelihood)
        else:
            latent = latent.at(functional)
        unit = torch.ones(targets.shape[1], dtype=torch.float64)
        model = RegressionModel(latent, (rows,), TargetScale(torch.zeros_like(unit), unit))
        return model, choice

    def _kernel_choice(
        self, x: Inputs, codes: torch.Tensor, functional: Functional, previous: LatentModel | None
    ) -> KernelChoice | None:
        """The kernel by held-out labels where none is given and f is g; that of a previous fit stays."""
        last: str | None = vars(self).pop("kernel_choice_", None)
        if self.kernel is not None or not functional.is_identity or iterations_of(self) == 0:
            return None
        if previous is None:
            targets = Gaussian(ONE_HOT_NOISE).encode_labels(codes, len(self.classes_))
            is_table = self.form_.image_shape is None and self.form_.input_shape is None
            choice = choose_kernel(x, codes, targets, is_table)
        else:
            choice = KernelChoice.kept(previous, last)
        if choice is not None:
            self.kernel_choice_ = choice.text
            if self.verbose:
                print(f"kernel: {choice.text}")
        return choice

    def _store(self, result: FitResult, codes: torch.Tensor, choice: KernelChoice | None) -> None:
        """Remember the fit, the scale of the softmax and, for one-hot codes, the noise asked for.

        A kernel that was chosen by held-out labels predicts with hyperparameters that were learned by them.
        """
        vars(self).pop("noise_", None)
        codes = codes.to(self.device_)
        if result.noise is not None:
            if choice is not None:
                latent, (rows,) = self.model_.latent, self.model_.observations
                result = choice.predicting(result, latent, rows, codes)
                noise = self.model_.latent.noise.item()
            elif result.label_noise is not None:
                of_evidence = result.noise if result.evidence_noise is None else result.evidence_noise
                self.model_ = self.model_.with_noise(of_evidence)
                noise = result.label_noise
            else:
                held = result.held()
                noise = noise_of_labels(held.held_out_means, codes, result.noise, self.noise)
                result = result.at_noise(noise, held)
            result, self.noise_ = result.at_noise(noise), noise
        scores = self.likelihood_.class_scores(result.held_out())
        self.scale_ = cautious_scale(scores, codes)
        self.leave_one_out_log_loss_ = cross_entropy(scores, codes, self.scale_)
        self._set_result(result, self.model_.latent.process)
