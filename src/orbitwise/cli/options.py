"""Arguments and options that commands share, and what their words mean."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError
from orbitwise.estimators.forms import image_layout

TaskName = StrEnum("TaskName", ["classification", "regression"])
BadRows = StrEnum("BadRows", ["stop", "skip"])
Format = StrEnum("Format", ["torchvision", "kornia", "albumentations", "json"])
ChannelOrder = StrEnum("ChannelOrder", ["auto", "first", "last"])
ASK = "say which with --channels first or --channels last"
Engine = StrEnum("Engine", ["auto", "exact", "collapsed", "variational"])

DataPath = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A .npz, .csv or .parquet file, a folder of images in class sub-folders, a CSV that names image "
        "files, or a name that `orbitwise datasets` lists.",
    ),
]
ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A .orbitwise file, or a folder that `learn` wrote.")
]
Target = Annotated[str | None, typer.Option(help="The column (or array) to predict.")]
Ignore = Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")]
Bad = Annotated[
    BadRows, typer.Option("--bad-rows", help="What to do about empty cells and unreadable images.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, …")]
Resize = Annotated[str | None, typer.Option(metavar="HxW", help="Bring all images to this height x width.")]
ChannelsOption = Annotated[
    ChannelOrder, typer.Option("--channels", help="Where image arrays have their channels.")
]
MaxNodes = Annotated[
    int | None, typer.Option(min=2, help="Points that stand for an orbit double up to this number.")
]
MaxSeconds = Annotated[
    float | None, typer.Option(min=0.001, help="Seconds to search for the ranges of each invariance at most.")
]
Seed = Annotated[int, typer.Option(help="Seeds everything that is drawn at random.")]


def size_of(text: str, option: str) -> tuple[int, int]:
    """Height and width, as in 28x28."""
    found = re.fullmatch(r"(\d+)x(\d+)", text.strip().lower())
    if found is None or min(map(int, found.groups())) < 1:
        raise CommandError(f"{option} {text}: give height and width as in 28x28")
    return int(found[1]), int(found[2])


def as_images(data: Data, size: tuple[int, int] | None, channels: str = "auto") -> Data:
    """Data that are images, of the height and width `size` where that is given, and where their channels are.

    Channels of rows of numbers follow each other as whole pictures, unless they are said to come last.
    """
    shape = data.shape
    if data.is_image:
        if channels != "auto":
            raise CommandError(f"--channels {channels} is for arrays: image files know their channels")
        image_layout(shape, size, data.channels or "auto", ASK)
        return data
    if shape is not None and len(shape) == 3:
        layout = image_layout(shape, size, channels, ASK)
        found = replace(data, channels=layout.channels, is_image=True)
    elif size is None:
        found = data
    elif shape is not None and shape != size and min(shape) > 1:
        raise CommandError(
            f"--image-shape {size[0]}x{size[1]}: the inputs are of shape {'x'.join(map(str, shape))}; give "
            "that, or bring them into another"
        )
    else:
        found = _rows_as_images(data, size, channels)
    if channels != "auto" and found.channels is None:
        raise CommandError(f"--channels {channels}: the inputs have no channels; leave it out")
    return found


def _rows_as_images(data: Data, size: tuple[int, int], channels: str) -> Data:
    width = data.X.shape[1]
    count, rest = divmod(width, math.prod(size))
    if rest or count < 1:
        raise CommandError(
            f"--image-shape {size[0]}x{size[1]} has {math.prod(size)} pixels, but inputs have {width} "
            "numbers; give the shape of the images"
        )
    if count == 1:
        return replace(data, shape=size, is_image=True)
    if channels == "last":
        return replace(data, shape=(*size, count), is_image=True, channels="last")
    return replace(data, shape=(count, *size), is_image=True, channels="first")


def images_text(data: Data) -> str:
    """What is said of images with channels: their size, and where the channels were taken to be."""
    if data.channels is None or data.layout.shape is None:
        return ""
    count, height, width = data.layout.shape
    other = "last" if data.channels == "first" else "first"
    return (
        f"images of {height}x{width} pixels, {count} channel{'s' if count > 1 else ''} {data.channels} "
        f"(--channels {other} overrides)"
    )


def command_of(name: str, argument: str, options: Mapping[str, object]) -> str:
    """The command line that asks for these options; None and empty ones were not given."""
    words = ["orbitwise", name, argument]
    for option, value in options.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        words += [word for each in values for word in (f"--{option.replace('_', '-')}", str(each))]
    return shlex.join(words)
