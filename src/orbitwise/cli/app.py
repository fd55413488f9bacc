"""The commands of `orbitwise`, their options and their help."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from orbitwise.cli.data import Data, Source, Task, infer_task, read
from orbitwise.cli.errors import CommandError, sentence
from orbitwise.cli.folders import Folder, check_new, model_file
from orbitwise.cli.invariances import candidates, not_images, parse
from orbitwise.cli.learning import Plan, check_device, demo_data, demo_plan, run
from orbitwise.cli.models import Library, exported, report_of_data, report_of_folder
from orbitwise.cli.models import predict as write_predictions
from orbitwise.cli.showing import datasets_table, model_table
from orbitwise.estimators.forms import image_layout
from orbitwise.storage import load, write_atomically

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


INTERRUPTED = 130
WIDTH = 110

app = typer.Typer(
    name="orbitwise",
    help="Learn what a function should not care about, from the training data alone.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Learn what a function should not care about, from the training data alone."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("orbitwise-demo"),
    seed: Seed = 0,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Compare four invariances of built-in images of digits; ends with a table and a report.

    Example: orbitwise demo --out build/demo
    """
    data, test = demo_data(seed)
    about = {"data": "digits", "command": f"orbitwise demo --seed {seed}"}
    run(data, test, demo_plan(seed, device), Folder(out), _console(), about, force=force)


@app.command()
def learn(
    data: DataPath,
    out: Annotated[Path, typer.Option(help="Folder for model, report and comparison.")],
    target: Target = None,
    invariance: Annotated[
        list[str] | None,
        typer.Option(
            help="What should not matter: none, rotation, affine, affine+deformation, flip, permutation, "
            "permutation:A,B,C (these columns change places), sign, … Repeat it to compare and keep the best."
        ),
    ] = None,
    test: Annotated[str | None, typer.Option(metavar="DATA2", help="Data to measure predictions on.")] = None,
    task: Annotated[TaskName | None, typer.Option(help="Told from the target unless given.")] = None,
    rows: Annotated[int | None, typer.Option(min=2, help="Learn from this many random rows only.")] = None,
    ignore: Ignore = None,
    image_shape: Annotated[
        str | None, typer.Option(metavar="HxW", help="Columns are the pixels of images of this shape.")
    ] = None,
    channels: ChannelsOption = ChannelOrder.auto,  # pyright: ignore
    resize: Resize = None,
    bad_rows: Bad = BadRows.stop,  # pyright: ignore
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was cut short.")] = False,
    force: Force = False,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="End with the best so far after this time.")
    ] = None,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report.")] = True,
    device: Device = "cpu",
    seed: Seed = 0,
    inference: Annotated[Engine, typer.Option(help="How; auto goes by the number of rows.")] = Engine.auto,  # pyright: ignore
    max_iterations: Annotated[int | None, typer.Option(min=0, help="Iterations of every ascent.")] = None,
    max_nodes: MaxNodes = None,
    max_seconds: MaxSeconds = None,
    num_inducing: Annotated[int | None, typer.Option(min=1, help="Inducing points.")] = None,
    num_nodes: Annotated[int | None, typer.Option(min=2, help="Exactly so many nodes of an orbit.")] = None,
    num_steps: Annotated[
        int | None, typer.Option(min=1, help="Stochastic steps instead of until settled.")
    ] = None,
) -> None:
    """Learn from data, and compare invariances by the evidence of the training data.

    Example: orbitwise learn digits.npz --target y --invariance none --invariance affine --out result

    Killed or stopped with Ctrl-C, it goes on with --resume, and ends with the same model, to the bit if
    OMP_NUM_THREADS is the same.
    """
    check_device(device)
    size = None if resize is None else size_of(resize, "--resize")
    source = Source(data, target, tuple(ignore or ()), bad_rows == BadRows.skip, size)
    as_read = read(source).take(rows, seed)
    plane = None if image_shape is None else size_of(image_shape, "--image-shape")
    read_data = as_images(as_read, plane, str(channels))
    held_out = None if test is None else read(replace(source, path=test, part="test"), read_data)
    names = candidates(invariance or [], read_data)
    for name in names:
        parse(name, read_data)
    chosen = {
        "inference": str(inference),
        "max_iterations": max_iterations,
        "max_nodes": max_nodes,
        "max_seconds": max_seconds,
        "num_inducing": num_inducing,
        "num_nodes": num_nodes,
        "num_steps": num_steps,
    }
    found: Task = infer_task(read_data.targets) if task is None else cast(Task, str(task))
    given = {name: value for name, value in chosen.items() if value is not None}
    plan = Plan(found, names, seed, device, given)
    console = _console()
    if task is None:
        other = "regression" if found == "classification" else "classification"
        console.print(f"{found} of {read_data.target!r} (--task {other} overrides)")
    told = images_text(read_data) if as_read.channels is None else ""
    for text in (told, "" if invariance else not_images(read_data)):
        if text:
            console.print(text, markup=False)
    asked = {"target": target, "invariance": invariance, "test": test, "task": task, "rows": rows}
    asked |= {"ignore": ignore, "image-shape": image_shape, "resize": resize, "bad-rows": bad_rows}
    asked |= {"channels": None if str(channels) == "auto" else channels}
    asked |= {"time-limit": time_limit, "device": device, "seed": seed, **chosen, "out": out}
    about = {"data": data, "command": command_of("learn", data, asked)}
    run(read_data, held_out, plan, Folder(out), console, about, resume, force, time_limit, with_report)


@app.command()
def predict(
    model: ModelPath,
    data: DataPath,
    out: Annotated[Path, typer.Option("-o", "--out", help="A .csv or .parquet file to write.")],
    target: Target = None,
    ignore: Ignore = None,
    resize: Annotated[
        bool, typer.Option("--resize", help="Bring images to the size of the model's.")
    ] = False,
    bad_rows: Bad = BadRows.stop,  # pyright: ignore
    batch_size: Annotated[int, typer.Option(min=1, help="Rows at a time.")] = 1024,
    device: Annotated[
        str | None, typer.Option(help="Where to compute; where it was learned by default.")
    ] = None,
    force: Force = False,
) -> None:
    """Predict: classes and their probabilities, or the mean and standard deviation of a new target.

    A kernel machine that knows neither predicts alone.

    Example: orbitwise predict result new.csv -o predictions.csv
    """
    check_new(out, force)
    if device is not None:
        check_device(device)
    fitted = load(model_file(model), device)
    # any size stands for that of the model
    size = (1, 1) if resize else None
    source = Source(data, target, tuple(ignore or ()), bad_rows == BadRows.skip, size, "test")
    count, notes = write_predictions(fitted, source, out, batch_size)
    console = _console()
    for note in notes:
        console.print(f"note: {note}", markup=False)
    console.print(f"{count:,} predictions: {out}", soft_wrap=True)


@app.command()
def report(
    model: ModelPath,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The page; MODEL/report.html by default.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="DATA", help="Training data, for a model file.")
    ] = None,
    test: Annotated[str | None, typer.Option("--test", metavar="DATA2", help="Test data.")] = None,
    target: Target = None,
    force: Force = False,
) -> None:
    """Write the report of a model: what was learned, how sure it is, and how well it predicts.

    Example: orbitwise report result
    """
    file = model_file(model)
    page = Folder(file.parent).report if out is None else out
    if out is not None or not model.is_dir():
        check_new(page, force)
    if data is not None:
        held_out = None if test is None else Source(test, target, part="test")
        written = report_of_data(load(file), Source(data, target), held_out, page)
    elif model.is_dir():
        folder = Folder(model)
        # its own page is written by one process at a time, like all that is in it
        with folder.writing() if out is None else contextlib.nullcontext():
            written, note = report_of_folder(folder, page)
        if note:
            _console().print(f"note: {note}", soft_wrap=True, markup=False)
    else:
        raise CommandError(f"the report of {model} needs data: add --data DATA, or name the folder of learn")
    _console().print(f"report: {written}", soft_wrap=True)


@app.command()
def show(model: ModelPath) -> None:
    """Show a model on one screen: learned bounds, evidence, data, versions.

    Example: orbitwise show result
    """
    _console().print(model_table(model_file(model)))


@app.command()
def export(
    model: ModelPath,
    to: Annotated[Format, typer.Option("--to", help="For which library, or as JSON.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The file: .py for a library, .json for JSON.")],
    builtin: Annotated[
        bool, typer.Option("--builtin", help="The library's own nearest transform, not the exact one.")
    ] = False,
    force: Force = False,
) -> None:
    """Hand the learned invariance to other code: a Python file with a `transform`, or JSON.

    Example: orbitwise export result --to torchvision -o augmentation.py
    """
    check_new(out, force)
    ending = ".json" if str(to) == "json" else ".py"
    if out.suffix != ending:
        raise CommandError(f"{out} must end in {ending} for --to {to}")
    text, note, was_run = exported(load(model_file(model)), cast(Library, str(to)), out.stem, builtin)
    write_atomically(out.resolve(), text)
    console = _console()
    console.print(f"{to}: {out}" + (" (run on one input)" if was_run else ""), soft_wrap=True, markup=False)
    if note:
        console.print(f"note: {note}", soft_wrap=True, markup=False)


@app.command("datasets")
def list_datasets() -> None:
    """List the data sets that can be used by name, and where each would be loaded from.

    Example: orbitwise datasets
    """
    _console().print(datasets_table())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status. Errors are one sentence, unless `--debug` is given."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        words = [each for each in given if each != "--debug"]
        with contextlib.nullcontext() if debug else _readable_warnings():
            status = app(words, prog_name="orbitwise", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        # a wrong use of options knows its own status and words
        message = getattr(error, "format_message", lambda: sentence(error))()
        if message:
            print(f"error: {' '.join(message.split())}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))


@contextlib.contextmanager
def _readable_warnings() -> Iterator[None]:
    """Every warning is one line, without the place in the code that it comes from."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        yield


def _show_warning(message: Warning | str, *place: object) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _console() -> Console:
    console = Console(highlight=False)
    # what is no terminal has no width of its own
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)
