"""A short Python file that makes a library's transform of an orbit, and a run of it on one image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from orbitwise.export.faithful import image_shape_of
from orbitwise.export.json_form import to_json
from orbitwise.export.libraries import LIBRARIES
from orbitwise.export.nearest import code, modules_of
from orbitwise.orbits.orbit import Orbit

LibraryName = Literal["torchvision", "kornia", "albumentations"]
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
    library: LibraryName,
    *,
    image_shape: Sequence[int] | None = None,
    faithful: bool = True,
    fill: float = 0.0,
    module: str = "augmentation",
) -> str:
    """Write the text of a Python file that makes a `transform` of an orbit.

    The library need not be installed to write the file; `run_script` checks whether the file runs.

    Parameters
    ----------
    orbit : Orbit
        A learned orbit of images.
    library : {"torchvision", "kornia", "albumentations"}
        The library for which the transform is made.
    image_shape : tuple of int, default=None
        (height, width) or (channels, height, width); needed only if the orbit does not know it.
    faithful : bool, default=True
        True writes a file that imports Orbitwise and moves images exactly as the model does. False writes a
        file that needs only the library and uses its most similar transform.
    fill : float, default=0.0
        The pixel value outside the image.
    module : str, default="augmentation"
        The name of the file without .py, for its docstring.

    Returns
    -------
    str
        The text of the file.
    """
    shape = image_shape_of(orbit, image_shape)
    learned = orbit.describe() or f"{orbit.size} elements"
    about = {"library": library, "learned": learned, "module": module if module.isidentifier() else "…"}
    if faithful:
        return FAITHFUL.format(**about, orbit=to_json(orbit, shape), fill=f", fill={fill!r}" if fill else "")
    written = LIBRARIES[library]
    call = written.call(orbit, shape, float(fill))
    imports = [written.statement, *(f"import {name}" for name in sorted(modules_of(call)))]
    name = written.statement.split()[-1]
    return BUILTIN.format(**about, imports="\n".join(sorted(imports)), call=code(call, name))


def run_script(
    text: str, library: LibraryName, image_shape: Sequence[int], *, faithful: bool = True
) -> str | None:
    """Run the text of `to_script` on one image of shape `image_shape`.

    Returns None if it ran, or the reason why the library that it needs cannot be imported. Any other error is
    raised, because a file that does not run must not be handed out.
    """
    content = compile(text, f"<{library}>", "exec")
    if not faithful or library == "albumentations":
        try:
            LIBRARIES[library].load()
        except ImportError as error:
            return str(error)
    space: dict[str, object] = {"__name__": "augmentation"}
    exec(content, space)
    transform = space["transform"]
    if not callable(transform):
        raise TypeError(
            f"The `transform` of the file must be a function of an image; {transform!r} is not callable."
        )
    LIBRARIES[library].try_out(transform, image_shape)
    return None
