"""A learned invariance as a file for others: JSON, or a short script that makes a library's transform."""

from __future__ import annotations

import json
from typing import Any, Literal

from orbitwise import export
from orbitwise.cli.errors import CommandError
from orbitwise.functionals.freezing import orbit_in
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit
from orbitwise.transforms.permutations import SignedPermutations

Library = Literal["torchvision", "kornia", "albumentations", "json"]
SCRIPT = '''"""An invariance that orbitwise learned, for {library}: `from {module} import transform`.

{learned}
"""

from orbitwise.export import from_json, to_{library}

ORBIT = r"""{orbit}"""

transform = {call}
'''


def exported(model: Any, library: Library, module: str = "augmentation", builtin: bool = False) -> str:
    """The text of the file; with `builtin` the script makes the library's nearest transform of its own."""
    orbit, shape = orbit_of(model), model._image_shape
    if library == "json":
        return _json(model, orbit) + "\n"
    if orbit is None or shape is None:
        what = "has no invariance" if orbit is None else "is not of images"
        raise CommandError(f"this model {what}, so there is nothing for {library} to do; use --to json")
    call = f"to_{library}(from_json(ORBIT))"
    if builtin:
        call = f"to_{library}(from_json(ORBIT), faithful=False).transform"
    learned = orbit.describe() or f"{orbit.size} elements"
    text = export.to_json(orbit, shape)
    return SCRIPT.format(library=library, module=module, learned=learned, orbit=text, call=call)


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
    return json.dumps(content, ensure_ascii=False)
