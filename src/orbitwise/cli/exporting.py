"""A learned invariance as a file for others: JSON, or a short script that makes a library's transform."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

import torch

from orbitwise import export
from orbitwise.cli.errors import CommandError
from orbitwise.export.scripts import run_script, to_script
from orbitwise.functionals.freezing import orbit_in
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit
from orbitwise.transforms.images import check_image_shape
from orbitwise.transforms.permutations import SignedPermutations

Library = Literal["torchvision", "kornia", "albumentations", "json"]


class Exported(NamedTuple):
    """The text of a file that was run on one input, or a note on why it could not be."""

    text: str
    note: str


def exported(model: Any, library: Library, module: str = "augmentation", builtin: bool = False) -> Exported:
    """The file, after a run; with `builtin` a script of a library's own transform, which needs it alone."""
    orbit, shape = orbit_of(model), model._image_shape
    if library == "json":
        if builtin:
            raise CommandError("--builtin goes with a library; leave it out for --to json")
        return Exported(_json(model, orbit) + "\n", "")
    if orbit is None or shape is None:
        what = "has no invariance" if orbit is None else "is not of images"
        raise CommandError(f"this model {what}, so there is nothing for {library} to do; use --to json")
    sizes = check_image_shape(shape)
    text = to_script(
        orbit,
        library,
        image_shape=sizes,
        faithful=not builtin,
        # warps of the model fill with its background
        fill=model._background,
        module=module,
    )
    missing = run_script(text, library, sizes, faithful=not builtin)
    return Exported(text, "" if missing is None else f"it could not be run here: {missing}")


def orbit_of(model: Any) -> Orbit | None:
    """The orbit that f is averaged over: the learned one, or the finite one that was given."""
    # models of earlier versions remember learned orbits only
    return orbit_in(model.functional_) if model.orbit_ is None else model.orbit_


def _json(model: Any, orbit: Orbit | None) -> str:
    """The orbit of images as `orbitwise.export.to_json` writes it; else the moves of columns."""
    if orbit is not None and model._image_shape is not None:
        return export.to_json(orbit, model._image_shape)
    names = getattr(model, "feature_names_in_", None)
    content: dict[str, Any] = {
        "format": "orbitwise invariance",
        "version": 1,
        "inputs": model.n_features_in_,
        "columns": None if names is None else [str(name) for name in names],
    }
    if orbit is None:
        content |= {"kind": "none"}
    elif isinstance(orbit, FiniteOrbit) and isinstance(orbit.transform, SignedPermutations):
        # x is moved to sign[e] * x[index[e]]
        content |= {"kind": "signed permutations", "index": orbit.transform.index.tolist()}
        content |= {"sign": orbit.transform.sign.tolist()}
    else:
        content |= {"kind": type(orbit).__name__, "learned": orbit.learned()}
    text = json.dumps(content, ensure_ascii=False)
    if "index" in content:
        _run_moves(text, orbit)
    return text


def _run_moves(text: str, orbit: Any) -> None:
    """Move one row by what was written, and compare with the orbit itself."""
    moves, row = json.loads(text), torch.arange(1.0, 1.0 + orbit.transform.index.shape[1])
    moved = torch.tensor(moves["sign"]) * row[torch.tensor(moves["index"])]
    if not torch.equal(moved, orbit.transform.all_elements(row[None])[0]):
        raise CommandError("the moves that were written are not those of the model; nothing was exported")
