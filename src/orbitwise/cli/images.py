"""Image files as arrays of one shape, grey [h, w] or coloured [3, h, w], between 0 and 1."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from orbitwise.cli.errors import CommandError

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pnm"}
GREY = {"1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N"}


@final
@dataclass(frozen=True)
class Images:
    """Images [n, …] that could be read, their places in the list of files, and why others could not."""

    pixels: NDArray[np.float64]
    kept: list[int]
    failures: dict[Path, str]


def is_image(name: str) -> bool:
    """Whether a name ends like an image's."""
    return Path(name).suffix.lower() in ENDINGS


def class_folders(folder: Path) -> tuple[list[Path], list[str]]:
    """The images in the sub-folders of a folder, and the names of these as labels, in order of names."""
    parts = sorted(part for part in folder.iterdir() if part.is_dir() and not part.name.startswith("."))
    found = [(file, part.name) for part in parts for file in images_in(part)]
    if not found:
        raise CommandError(
            f"{folder} has no images in sub-folders; put the images of every class in a sub-folder with the "
            "name of the class"
        )
    return [file for file, _ in found], [label for _, label in found]


def images_in(folder: Path) -> list[Path]:
    """All images in a folder and below, in order of names."""
    files = (file for file in folder.rglob("*") if is_image(file.name) and not file.name.startswith("."))
    return sorted(file for file in files if file.is_file())


def load_images(
    files: Sequence[Path], shape: Sequence[int] | None = None, resize: Sequence[int] | None = None
) -> Images:
    """The images of files, brought to (height, width) `resize` and to `shape`'s colours if these are given.

    Without `resize` all must be of one size, that of `shape` if it is given.
    """
    arrays, kept, failures = [], [], {}
    for place, file in enumerate(files):
        try:
            arrays.append(_pixels(file, resize))
            kept.append(place)
        except CommandError:
            raise
        except Exception as error:  # the many decoders of Pillow raise whatever they like
            failures[file] = " ".join(str(error).split()) or type(error).__name__
    wanted = None if shape is None else tuple(shape)[-2:]
    sizes = Counter(array.shape[-2:] for array in arrays)
    if len(sizes) > 1 or (wanted is not None and set(sizes) - {wanted}):
        common = wanted or max(sizes, key=lambda size: sizes[size])
        odd = next(place for place, array in zip(kept, arrays, strict=True) if array.shape[-2:] != common)
        size = next(array.shape[-2:] for array in arrays if array.shape[-2:] != common)
        said = "the model takes" if wanted else "others are of"
        raise CommandError(
            f"{files[odd]} is {_text(size)} pixels (height x width) and {said} {_text(common)}; "
            f"bring all to one size with --resize {_text(common)}"
        )
    coloured = len(shape) == 3 and shape[0] == 3 if shape is not None else any(a.ndim == 3 for a in arrays)
    same = [_coloured(array) if coloured else _grey(array) for array in arrays]
    if shape is not None and len(shape) == 3 and not coloured:
        same = [array[None] for array in same]
    return Images(np.array(same, dtype=np.float64), kept, failures)


def _pixels(file: Path, resize: Sequence[int] | None) -> NDArray[np.float64]:
    image_module = pillow()
    with warnings.catch_warnings():
        # a picture of a hundred million pixels is a warning, or an attack
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        with image_module.open(file) as image:
            image.load()
            if image.mode not in GREY and image.mode != "RGB":
                image = image.convert("RGB")
            elif image.mode in ("1", "LA", "La"):
                image = image.convert("L")
            depth = 255.0 if image.mode in ("L", "RGB") else 1.0 if image.mode == "F" else 65535.0
            if resize is not None:
                image = image.resize((resize[1], resize[0]), image_module.Resampling.BILINEAR)
            array = np.asarray(image, dtype=np.float64) / depth
    return array if array.ndim == 2 else np.moveaxis(array, -1, 0)


def pillow() -> Any:
    """Pillow's module, or a sentence that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise CommandError("reading images needs Pillow: pip install pillow") from error
    return Image


def _coloured(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return array if array.ndim == 3 else np.repeat(array[None], 3, axis=0)


def _grey(array: NDArray[np.float64]) -> NDArray[np.float64]:
    # luminance, as Pillow's own conversion
    return array if array.ndim == 2 else np.tensordot([0.299, 0.587, 0.114], array, axes=1)


def _text(size: Sequence[int]) -> str:
    return "x".join(str(each) for each in size)
