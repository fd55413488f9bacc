"""Fixed feature maps φ: a network, a function or a fitted transformer, evaluated some rows at a time.

Nothing of φ is learned. A network has derivatives, so that slopes and the ranges of orbits reach through it;
functions and transformers have none. A model file holds the weights of a network and a few rows with their
features, but no code: whoever loads it gives φ again, and it must agree with these.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, Protocol, cast, final, get_args, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from orbitwise.declarations import Field, Stored, require


@runtime_checkable
class Transformer(Protocol):
    """What scikit-learn's transformers do."""

    def transform(self, X: NDArray[np.float64]) -> object:
        """Features of rows."""
        ...


Features = nn.Module | Transformer | Callable[..., object]
"""What φ may be given as."""
Kind = Literal["module", "function", "transformer"]
PHRASES: dict[Kind, str] = {
    "module": "the torch module {}",
    "function": "the function {}",
    "transformer": "the transformer {}",
}
NUMBERS_AT_ONCE = 2**20
"""Of inputs: networks make many times as many numbers of them on their way."""
ROWS_AT_ONCE = 1024
NUM_PROBES = 4
"""Rows that φ is tried on."""
AGREEMENT = 1e-3
"""Features of one row are equal if they differ by less than this share of the features' size."""
MOST_REMEMBERED = 2**25
"""Numbers of inputs and features that are kept for the next step of a fit."""


@final
class FixedFeatures:
    """φ of rows [n, d] as rows of features [n, e], for `FeatureMap`; made by `FixedFeatures.of(φ, rows)`.

    A module sees inputs as [n, *shape] and works in its own precision. A function sees arrays [n, *shape], or
    tensors if it fails on arrays, and a transformer rows. One that is read from a model file waits for φ,
    which `attach` checks: a module takes the `weights`, and the features of the `probes` must be `answers`.

    Parameters
    ----------
    kind : {"module", "function", "transformer"}
        What φ is.
    name : str
        The name of a function, or of the class of anything else.
    probes : Tensor of shape (k, d)
        The first rows of the fit.
    answers : Tensor of shape (k, e)
        Their features.
    weights : mapping from str to ndarray
        The state of a module; empty for others.
    shape : tuple of int, default=None
        The shape of one input, channels first; None for rows.
    channels_last : bool, default=False
        Whether φ sees images with their channels last.
    background : float, default=0.0
        What is added to inputs before φ sees them, because it was taken off before they were moved.
    source : Module, function or fitted transformer, default=None
        φ, which treats rows one by one.
    """

    stored = Stored(
        {
            "weights": Field(each=Field((np.ndarray,), is_record=True)),
            "source": Field(is_omitted=True),
        }
    )

    def __init__(
        self,
        kind: str,
        name: str,
        probes: Float[Tensor, "k d"],
        answers: Float[Tensor, "k e"],
        weights: Mapping[str, np.ndarray],
        shape: tuple[int, ...] | None = None,
        channels_last: bool = False,
        background: float = 0.0,
        source: Features | None = None,
    ) -> None:
        self.kind: Kind = cast(Kind, kind)
        self.name = name
        self.probes, self.answers = probes, answers
        self.weights = weights
        self.shape = shape
        self.channels_last = channels_last
        self.background = background
        self._source = source
        self._takes_tensors = False
        self._memory: list[tuple[Tensor, Tensor]] | None = None

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        source: Features,
        x: Float[Tensor, "n d"],
        shape: Sequence[int] | None = None,
        channels_last: bool = False,
        background: float = 0.0,
    ) -> FixedFeatures:
        """φ itself, tried on some of the rows x, which must have the same features alone and together.

        A module is copied, in evaluation mode and without gradients of its parameters.
        """
        probes = x[:NUM_PROBES].detach().cpu().clone()
        kind, name, form = kind_of(source), name_of(source), None if shape is None else tuple(shape)
        held = _frozen(source) if isinstance(source, nn.Module) else source
        weights = _weights(held) if isinstance(held, nn.Module) else {}
        found = cls(kind, name, probes, probes[:, :0], weights, form, channels_last, background, held)
        found.answers = found._tried(probes)
        single = torch.cat([found._evaluate(row) for row in probes.split(1)])
        if not _agree(single, found.answers):
            raise ValueError(
                f"{found} gives different features for a row alone than for the same row among others: "
                f"{_brief(single[0])} alone, {_brief(found.answers[0])} among {len(probes)}, for the first "
                "row. φ must treat rows one by one and draw nothing at random. Quantities that depend on all "
                "rows, such as their mean, must be fixed beforehand, as in a fitted scikit-learn transformer."
            )
        return found

    def check_parts(self) -> None:
        """Raise a ValueError where these are no features of the probes."""
        require(self.kind in get_args(Kind), "features of an unknown kind")
        require(0 < len(self.probes) <= NUM_PROBES, "features of no rows, or of too many")
        require(len(self.probes) == len(self.answers) and self.answers.numel() > 0, "features of other rows")
        fits = self.shape is None or math.prod(self.shape) == self.probes.shape[1]
        require(fits, "features of inputs of another shape")

    @property
    def source(self) -> Features:
        """φ: the copy of a module, or the function or transformer itself."""
        if self._source is None:
            raise ValueError(self.missing())
        return self._source

    @property
    def is_differentiable(self) -> bool:
        """Whether slopes reach through φ."""
        return self.kind == "module"

    @property
    def operations(self) -> float:
        """How many operations the features of one row and their derivatives take; 0 where it is not known.

        The network runs forward, once more because activations are not kept, and backward at twice the cost.
        """
        if not self.is_differentiable:
            return 0.0
        from torch.utils.flop_counter import FlopCounterMode  # takes long to import

        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            self._evaluate(self.probes[:1])
        return 4.0 * counter.get_total_flops()

    @property
    def fingerprint(self) -> str:
        """What kind of φ this is, its name, and a short hash of its weights and of some of its features."""
        digest = hashlib.sha256()
        for name, array in self.weights.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        if not self.weights:
            digest.update(self.answers.cpu().numpy().tobytes())
        return f"{self.kind} {self.name} {digest.hexdigest()[:12]}"

    def __str__(self) -> str:
        return f"features={PHRASES[self.kind].format(self.name)}"

    __repr__ = __str__

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_memory": None}

    def missing(self) -> str:
        """What to give at load."""
        what = PHRASES[self.kind].format(self.name)
        rest = {
            "module": "Build the network again and pass it: orbitwise.load(path, features=network). Its "
            "weights are in the file.",
            "function": "Pass the same function: orbitwise.load(path, features=function).",
            "transformer": "Pass the transformer that was fitted then: orbitwise.load(path, "
            "features=transformer).",
        }[self.kind]
        return f"This model sees its inputs through {what}, which is code and not stored in the file. {rest}"

    def attach(self, given: object) -> None:
        """Take φ again for a model that was loaded; a ValueError says why it is not that of the fit."""
        kind, name = kind_of(given), name_of(given)
        if kind != self.kind or name != self.name:
            raise ValueError(
                f"The model was fitted with {PHRASES[self.kind].format(self.name)}, but features= is "
                f"{PHRASES[kind].format(name)}: pass what the model was fitted with."
            )
        source = cast(Features, given)
        if isinstance(source, nn.Module):
            source = _frozen(source)
            _load_weights(source, self.weights, self.name)
        self._source = source
        found = self._tried(self.probes)
        if not _agree(found, self.answers):
            self._source = None
            raise ValueError(
                f"{self} gives other features than at the fit: {_brief(found[0])} instead of "
                f"{_brief(self.answers[0])} for the first of {len(self.probes)} rows in the file. Pass the "
                "one that the model was fitted with."
            )

    def place(self, device: torch.device) -> None:
        """Move a module to a device, if it is elsewhere: within derivatives it cannot be moved."""
        source = self.source
        if isinstance(source, nn.Module) and any(each.device != device for each in _tensors(source)):
            source.to(device)

    def remember(self) -> None:
        """Keep features until `forget`: engines ask for those of the same rows at every step."""
        self._memory = []

    def forget(self) -> None:
        """Keep no features any longer."""
        self._memory = None

    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        has_tangents = forward_ad.unpack_dual(x).tangent is not None
        has_slopes = has_tangents or (torch.is_grad_enabled() and x.requires_grad)
        if has_slopes and not self.is_differentiable:
            raise ValueError(
                f"{self} has no derivatives, so slopes of f and ranges of orbits cannot be computed: "
                "give φ as a torch.nn.Module, or use FiniteDifference(direction) for slopes."
            )
        if has_slopes:
            # under forward differentiation nothing is held for later; else activations are computed again
            again = partial(checkpoint, self._evaluate, use_reentrant=False, preserve_rng_state=False)
            return self._in_parts(self._evaluate if has_tangents else again, x)
        known = self._known(x)
        return self._remembered(x) if known is None else known

    def _known(self, x: Tensor) -> Tensor | None:
        """The features of rows that are remembered."""
        for rows, features in self._memory or ():
            is_alike = (rows.shape, rows.device, rows.dtype) == (x.shape, x.device, x.dtype)
            if is_alike and torch.equal(rows, x):
                return features
        return None

    @torch.no_grad()
    def _remembered(self, x: Tensor) -> Tensor:
        """The features of rows, remembered for the next step if there is room."""
        features = self._in_parts(self._evaluate, x)
        memory, room = self._memory, MOST_REMEMBERED - x.numel() - features.numel()
        if memory is not None and room >= 0:
            while sum(rows.numel() + others.numel() for rows, others in memory) > room:
                memory.pop(0)
            memory.append((x.detach().clone(), features))
        return features

    def _in_parts(self, evaluate: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        count = min(ROWS_AT_ONCE, max(1, NUMBERS_AT_ONCE // max(1, x.shape[1])))
        return torch.cat([evaluate(part) for part in x.split(count)])

    def _tried(self, x: Tensor) -> Tensor:
        """The features of rows, after a look whether a function wants arrays or tensors."""
        self._takes_tensors = False
        try:
            return self._evaluate(x)
        except ValueError:
            if self.kind != "function":
                raise
            self._takes_tensors = True
            try:
                return self._evaluate(x)
            except ValueError:
                self._takes_tensors = False
        return self._evaluate(x)

    def _evaluate(self, x: Tensor) -> Tensor:
        """φ of a few rows, in their precision."""
        self.place(x.device)
        inputs, source = self._arranged(x), self.source
        try:
            if isinstance(source, nn.Module):
                like = next((each for each in _tensors(source) if each.is_floating_point()), inputs)
                found = source(inputs.to(like.dtype))
            elif self.kind == "function":
                array = inputs if self._takes_tensors else inputs.detach().cpu().numpy()
                found = cast(Callable[..., object], source)(array)
            else:
                found = cast(Transformer, source).transform(inputs.detach().cpu().numpy())
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ValueError(
                f"{self} failed on inputs of shape {tuple(inputs.shape)} ({type(error).__name__}: {error}). "
                f"{self._expected()}"
            ) from error
        return self._checked(found, x)

    def _expected(self) -> str:
        """What φ is given, and how to give it something else."""
        if self.kind == "transformer":
            return "Transformers are given rows [n_samples, n_features]."
        if self.kind == "function":
            return "Functions are given an array, or a tensor if they fail on that, of the shape of X."
        return (
            "Modules are given [n, channels, height, width] of images, and rows [n, n_features] of inputs "
            "without a shape: give X with its dimensions or image_shape=, or begin the network with "
            "torch.nn.Unflatten."
        )

    def _arranged(self, x: Tensor) -> Tensor:
        """A copy of rows as φ takes them, which it may work in."""
        x = x + self.background if self.background else x.clone()
        if self.shape is None:
            return x
        images = x.reshape(len(x), *self.shape)
        if self.channels_last:
            images = images.movedim(1, -1)
        return images.flatten(1) if self.kind == "transformer" else images

    def _checked(self, found: object, x: Tensor) -> Tensor:
        """Features [n, e] like the rows x, or a ValueError that says what φ gave."""
        if not isinstance(found, Tensor):
            dense = cast("Callable[[], object] | None", getattr(found, "toarray", None))
            array = np.asarray(found if dense is None else dense())
            if array.dtype.kind not in "biuf":
                raise ValueError(
                    f"{self} must give a tensor or an array of numbers, [n, features], not "
                    f"{type(found).__name__}."
                )
            found = torch.from_numpy(np.array(array, dtype=np.float64))
        if found.dim() != 2 or len(found) != len(x) or found.numel() == 0:
            ends = "end the network with torch.nn.Flatten()" if self.kind == "module" else "make rows of them"
            advice = f": {ends}" if found.dim() > 2 else ""
            raise ValueError(
                f"{self} must turn {len(x)} inputs into features [{len(x)}, e], but gave an array of shape "
                f"{tuple(found.shape)}{advice}."
            )
        if found.is_complex():
            raise ValueError(f"{self} gives complex features, but real ones are required.")
        if not bool(found.isfinite().all()):
            raise ValueError(
                f"{self} gives features that are NaN or infinite: look at its weights and at the scale of X."
            )
        return found.to(x)


def kind_of(source: object) -> Kind:
    """What kind of φ is given, or a TypeError."""
    if isinstance(source, nn.Module):
        if any(is_lazy(each) for each in _tensors(source)):
            raise ValueError("features= is a lazy module without weights: call it once on inputs first.")
        return "module"
    if not isinstance(source, type):
        if isinstance(source, Transformer):
            return "transformer"
        if callable(source):
            return "function"
    what = f"the class {source.__name__}, not an instance of it" if isinstance(source, type) else repr(source)
    raise TypeError(
        "features must be a torch.nn.Module, a function of an array, a scikit-learn transformer or None; "
        f"this is {what}."
    )


def name_of(source: object) -> str:
    """How φ is called: the name of a function, or of the class of anything else."""
    return str(getattr(source, "__qualname__", type(source).__name__)).rpartition(".<locals>.")[2]


def _frozen(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).eval().requires_grad_(False)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _weights(module: nn.Module) -> dict[str, NDArray[np.generic]]:
    """The state of a module as arrays, half precision as single, which loses nothing."""
    found: dict[str, NDArray[np.generic]] = {}
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, Tensor):
            continue  # told by code, which gives it again
        is_half = tensor.dtype in (torch.float16, torch.bfloat16)
        found[name] = (tensor.float() if is_half else tensor).detach().cpu().numpy()
    return found


@torch.no_grad()
def _load_weights(module: nn.Module, weights: Mapping[str, NDArray[np.generic]], name: str) -> None:
    """Give a module its weights, or raise a ValueError that names the first that does not fit."""
    state = _weights(module)
    for each in (*state, *weights):
        if each not in weights or each not in state:
            has = "the file" if each in weights else "the module"
            raise ValueError(
                f"{name} has other weights than at the fit: {each} is in {has} only. Build the network as it "
                "was when the model was fitted."
            )
        if state[each].shape != weights[each].shape:
            raise ValueError(
                f"{name} has other weights than at the fit: {each} has the shape {state[each].shape}, "
                f"but {weights[each].shape} in the file. Build the network as it was when the model was "
                "fitted."
            )
    given = {each: torch.from_numpy(np.array(array)) for each, array in weights.items()}
    module.load_state_dict({**module.state_dict(), **given})


def _agree(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    size = float(expected.abs().amax().clamp_min(torch.finfo(torch.float32).tiny))
    return bool((found - expected).abs().amax() <= AGREEMENT * size)


def _brief(row: Tensor) -> str:
    shown = ", ".join(f"{value:.4g}" for value in row[:4].tolist())
    return f"[{shown}, …]" if len(row) > 4 else f"[{shown}]"
