"""The command in several processes that torchrun started: the first runs it, the others share its fits."""

from __future__ import annotations

import os
from collections.abc import Callable


def are_several() -> bool:
    """Whether torchrun started several processes, which takes no import of torch to know."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def was_restarted() -> bool:
    """Whether torchrun has started the processes again, because one of them died."""
    return are_several() and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def run_in_first(run: Callable[[], int]) -> int:
    """The exit status of `run` in the first process; the others follow its fits, and write nothing."""
    from orbitwise.estimators.sharing import dismiss, follow

    if os.environ["RANK"] != "0":
        follow()
        return 0
    try:
        return run()
    finally:
        dismiss()
