"""A learned invariance as a file for others: JSON, or a short script that makes a library's transform."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

import torch

from orbitwise import export
from orbitwise.cli.errors import CommandError
from orbitwise.export.scripts import run_script, to_script
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit
from orbitwise.report.ranges import orbit_of
from orbitwise.transforms.images import check_image_shape
from orbitwise.transforms.permutations import SignedPermutations

Library = Literal["torchvision", "kornia", "albumentations", "json"]


class Exported(NamedTuple):
    """The text of a file, a note on why it could not be run, and whether it was run on one input."""

    text: str
    note: str
    was_run: bool


def exported(model: Any, library: Library, module: str = "augmentation", builtin: bool = False) -> Exported:
    """The file, after a run; with `builtin` a script of a library's own transform, which needs it alone."""
    if not hasattr(model, "functional_"):
        raise CommandError(
            f"this model is of class {type(model).__name__}, which is given its invariance and learns none: "
            "there is nothing to export; models that `orbitwise learn` makes have an invariance to export"
        )
    orbit, shape = orbit_of(model), model._image_shape
    if library == "json":
        if builtin:
            raise CommandError("--builtin goes with a library; leave it out for --to json")
        text, was_run = _json(model, orbit)
        return Exported(text + "\n", "", was_run)
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
    if missing is not None:
        return Exported(text, f"it could not be run here: {missing}", False)
    return Exported(text, "", True)


def _json(model: Any, orbit: Orbit | None) -> tuple[str, bool]:
    """The orbit of images as `orbitwise.export.to_json` writes it, else the moves of columns; and if run."""
    if orbit is not None and model._image_shape is not None:
        # it moves an image by what it wrote
        return export.to_json(orbit, model._image_shape), True
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
    has_moves = "index" in content
    if has_moves:
        _run_moves(text, orbit)
    return text, has_moves


def _run_moves(text: str, orbit: Any) -> None:
    """Move one row by what was written, and compare with the orbit itself."""
    moves, row = json.loads(text), torch.arange(1.0, 1.0 + orbit.transform.index.shape[1])
    moved = torch.tensor(moves["sign"]) * row[torch.tensor(moves["index"])]
    if not torch.equal(moved, orbit.transform.all_elements(row[None])[0]):
        raise CommandError("the moves that were written are not those of the model; nothing was exported")
