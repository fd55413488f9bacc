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

TaskName = StrEnum("TaskName", ["classification", "regression"])
BadRows = StrEnum("BadRows", ["stop", "skip"])
Format = StrEnum("Format", ["torchvision", "kornia", "albumentations", "json"])
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
Seed = Annotated[int, typer.Option(help="Seeds everything that is drawn at random.")]


def size_of(text: str, option: str) -> tuple[int, int]:
    """Height and width, as in 28x28."""
    found = re.fullmatch(r"(\d+)x(\d+)", text.strip().lower())
    if found is None or min(map(int, found.groups())) < 1:
        raise CommandError(f"{option} {text}: give height and width as in 28x28")
    return int(found[1]), int(found[2])


def as_images(data: Data, shape: tuple[int, int]) -> Data:
    """Rows of numbers as images; several channels may follow each other in a row."""
    width = data.X.shape[1]
    channels, rest = divmod(width, math.prod(shape))
    if rest or channels < 1:
        raise CommandError(
            f"--image-shape {shape[0]}x{shape[1]} has {math.prod(shape)} pixels, but inputs have {width} "
            "numbers; give the shape of the images"
        )
    return replace(data, shape=shape if channels == 1 else (channels, *shape), is_image=True)


def command_of(name: str, argument: str, options: Mapping[str, object]) -> str:
    """The command line that asks for these options; None and empty ones were not given."""
    words = ["orbitwise", name, argument]
    for option, value in options.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        words += [word for each in values for word in (f"--{option.replace('_', '-')}", str(each))]
    return shlex.join(words)
