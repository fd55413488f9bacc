"""A short Python file that makes a library's transform of an orbit, and a run of it on one image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from orbitwise.export.albumentations import albumentations_call
from orbitwise.export.builtin import library, tried
from orbitwise.export.calls import Call, code, modules_of
from orbitwise.export.faithful import image_shape_of
from orbitwise.export.json_form import to_json
from orbitwise.export.kornia import kornia_call
from orbitwise.export.torchvision import torchvision_call
from orbitwise.orbits.orbit import Orbit

Library = Literal["torchvision", "kornia", "albumentations"]
CALLS: dict[str, Callable[[Orbit, tuple[int, int, int], float], Call]] = {
    "albumentations": albumentations_call,
    "kornia": kornia_call,
    "torchvision": torchvision_call,
}
MODULES = {
    "albumentations": "albumentations",
    "kornia": "kornia.augmentation",
    "torchvision": "torchvision.transforms.v2",
}
IMPORTS = {
    "albumentations": "import albumentations",
    "kornia": "from kornia import augmentation",
    "torchvision": "from torchvision.transforms import v2",
}
FAITHFUL = '''"""An invariance that orbitwise learned, for {library}: `from {module} import transform`.

{learned}
"""

from orbitwise.export import from_json, to_{library}

ORBIT = r"""{orbit}"""

transform = to_{library}(from_json(ORBIT){fill})
'''
BUILTIN = '''"""An invariance that orbitwise learned, by {library} alone: `from {module} import transform`.

{learned}
"""

{imports}

transform = {call}
'''


def to_script(
    orbit: Orbit,
    library: Library,
    *,
    image_shape: Sequence[int] | None = None,
    faithful: bool = True,
    fill: float = 0.0,
    module: str = "augmentation",
) -> str:
    """The text of a file `module`.py with a `transform`; with `faithful=False` it needs the library alone.

    `fill` is what lies outside the image. Neither form needs the library to be written; `run_script` tells
    whether it runs.
    """
    shape = image_shape_of(orbit, image_shape)
    learned = orbit.describe() or f"{orbit.size} elements"
    about = {"library": library, "learned": learned, "module": module if module.isidentifier() else "…"}
    if faithful:
        return FAITHFUL.format(**about, orbit=to_json(orbit, shape), fill=f", fill={fill!r}" if fill else "")
    call = CALLS[library](orbit, shape, float(fill))
    imports = [IMPORTS[library], *(f"import {name}" for name in sorted(modules_of(call)))]
    name = IMPORTS[library].split()[-1]
    return BUILTIN.format(**about, imports="\n".join(sorted(imports)), call=code(call, name))


def run_script(
    text: str, library: Library, image_shape: Sequence[int], *, faithful: bool = True
) -> str | None:
    """Run the text of `to_script` on one image: None where it ran, or why the library it needs is not here.

    What goes wrong otherwise is raised: such a file must not be handed out.
    """
    content = compile(text, f"<{library}>", "exec")
    if not faithful or library == "albumentations":
        try:
            _library(library)
        except ImportError as error:
            return str(error)
    space: dict[str, Any] = {"__name__": "augmentation"}
    exec(content, space)
    tried(lambda image: _applied(space["transform"], image, library, faithful), image_shape)
    return None


def _library(name: Library) -> Any:
    return library(MODULES[name])


def _applied(transform: Any, image: Tensor, library: Library, faithful: bool) -> Tensor:
    """One image [c, h, w] moved the way that a library hands images over."""
    if library == "albumentations":
        array = np.ascontiguousarray(image.numpy().transpose(1, 2, 0), dtype=np.float32)
        moved = transform(image=array)["image"].reshape(array.shape)
        return torch.from_numpy(np.ascontiguousarray(moved.transpose(2, 0, 1)))
    return transform(image) if faithful or library == "torchvision" else transform(image[None])[0]
