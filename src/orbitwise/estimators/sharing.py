"""Fits that several processes share: how they agree on what is fitted, and how some of them only follow.

A fit is shared if it is called in every process that torchrun started, or of the process group of
torch.distributed. Processes that `follow` do not call it themselves: they take part in the fits of the first
process, which sends them the estimator and the data.
"""

from __future__ import annotations

import copy
import hashlib
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from orbitwise.inference.processes import (
    ALONE,
    NothingToShareError,
    Processes,
    abandon,
    is_launched,
    launched,
)

OWN = {"callback": None, "checkpoint": None, "verbose": False}
"""Settings of the first process alone, which prints and writes files, and what they are in the others."""
WAITING = 60.0
"""Seconds after which a fit that waits for other processes says so."""
SAMPLED = 16
"""Rows by which data are compared."""
IN_ONE_PROCESS = ContextVar("IN_ONE_PROCESS", default=False)


class Call(NamedTuple):
    """A call of a method that fits: the name of the method, and its arguments."""

    method: str
    arguments: Sequence[object]
    named: Mapping[str, object]


@contextmanager
def one_process() -> Iterator[None]:
    """Within, fits are not shared, although there are several processes of torch.distributed.

    Examples
    --------
    >>> import orbitwise
    >>> with orbitwise.one_process():
    ...     model = orbitwise.SparseGPRegressor()  # and model.fit(X, y), in this process only
    """
    token = IN_ONE_PROCESS.set(True)
    try:
        yield
    finally:
        IN_ONE_PROCESS.reset(token)


@contextmanager
def shared(estimator: object, call: Call) -> Iterator[bool]:
    """Within, `_processes` of the estimator are those that share this call; usually there is only one.

    Yields whether this is the first of them, which alone gives warnings.
    """
    if not getattr(estimator, "shares_rows", False):
        yield True
        return
    processes: Processes = vars(estimator).pop("_processes", ALONE)
    if processes.is_alone and is_launched() and not IN_ONE_PROCESS.get():
        with _waiting():
            processes = launched()
            _agree(processes, estimator, call)
    if processes.is_alone:
        yield True
        return
    vars(estimator)["_processes"] = processes
    try:
        with warnings.catch_warnings():
            if not processes.is_first:
                warnings.simplefilter("ignore")
            yield processes.is_first
    except BaseException as error:
        if not isinstance(error, ValueError | ArithmeticError | NothingToShareError):
            # the others cannot know of it, and would wait for this process
            abandon()
        raise
    finally:
        processes.leave()
        vars(estimator).pop("_processes", None)


@contextmanager
def _waiting() -> Iterator[None]:
    """Say so if the other processes do not come."""
    message = (
        "A fit waits for the other processes that torchrun started, or of the process group of "
        "torch.distributed: call fit in all of them, or within orbitwise.one_process() if only one is to fit."
    )
    timer = threading.Timer(WAITING, lambda: warnings.warn(message, RuntimeWarning, stacklevel=2))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def follow() -> None:
    """Take part in every fit of the first process, until it calls `dismiss`; Ctrl-C is left to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        processes = launched(follows=True)
        if processes.from_first("") == "":
            return
        processes.all_of("send")
        order: tuple[object, Call] = processes.from_first((None, Call("", (), {})))
        estimator, call = order
        vars(estimator)["_processes"] = processes
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                getattr(estimator, call.method)(*call.arguments, **call.named)
        except (ValueError, ArithmeticError, NothingToShareError):
            continue  # the first process meets the same error, and says so


def dismiss() -> None:
    """Tell all processes that follow this one that there are no more fits."""
    if is_launched():
        launched().from_first("")


def _agree(processes: Processes, estimator: object, call: Call) -> None:
    """Make sure that all processes fit the same estimator to the same data, or send these to followers."""
    mine = described(estimator, call)
    first = processes.from_first(mine)
    answers = processes.all_of("same" if mine == first else mine)
    if "send" in answers:
        without = copy.copy(estimator)
        vars(without).update({name: value for name, value in OWN.items() if hasattr(estimator, name)})
        processes.from_first((without, call))
    others = [each for each in answers if each not in ("same", "send")]
    if others:
        raise ValueError(
            f"Of the processes that share a fit, the first calls {first}, but another one {others[0]}. Call "
            "fit in every process, with the same settings and the same rows, or fit within "
            "orbitwise.one_process()."
        )


def described(estimator: object, call: Call) -> str:
    """What is called: the method, plain settings, and the shape and a digest of some rows of the data."""
    assert isinstance(estimator, BaseEstimator)
    settings = {
        name: value
        for name, value in estimator.get_params(deep=False).items()
        if name not in OWN and isinstance(value, bool | int | float | str | None)
    }
    data = [*call.arguments, *call.named.values()]
    told = ", ".join(_digest(each) for each in data)
    return f"{type(estimator).__name__}.{call.method} of {told} with {settings}"


def _digest(data: object) -> str:
    """The shape of data, and a digest of some of their rows."""
    if not isinstance(data, np.ndarray):
        count = f" of {len(data)}" if isinstance(data, Sized) else ""
        return f"{type(data).__name__}{count}"
    step = max(1, len(data) // SAMPLED) if data.ndim else 1
    rows = np.ascontiguousarray(data[::step] if data.ndim else data)
    content = rows.tobytes() if rows.dtype != object else repr(rows.tolist()).encode()
    return f"{data.dtype} {data.shape} {hashlib.sha256(content).hexdigest()[:8]}"
