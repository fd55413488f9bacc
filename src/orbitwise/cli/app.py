"""The commands of `orbitwise`, their options and their help."""

from __future__ import annotations

import contextlib
import inspect
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from typer.core import TyperGroup
from typer.main import get_command

from orbitwise import __version__
from orbitwise.cli.errors import CommandError, sentence
from orbitwise.cli.several import are_several, run_in_first, was_restarted

# What computes is imported by the commands that need it: `orbitwise --help` must not wait for torch.

INTERRUPTED = 130
"""The exit status after Ctrl-C."""
WIDTH = 110
"""Of what is printed where there is no terminal."""


def check_device(device: str | None) -> str | None:
    """Return a device; a CommandError if there is none of that name."""
    if device not in (None, "auto", "cpu"):
        from orbitwise.estimators.estimator import chosen_device

        try:
            chosen_device(device, 0.0)
        except ValueError as error:
            raise CommandError(f"--device {device} is not available: {error}") from error
    return device


def show_version(is_asked: bool) -> bool:
    """Print the version of Orbitwise and end, if that is asked for."""
    if is_asked:
        print(f"orbitwise {__version__}")
        raise typer.Exit
    return is_asked


DataPath = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A .npz, .csv or .parquet file, a folder of images in class sub-folders, a CSV file that names "
        "image files, or a name that `orbitwise datasets` lists.",
    ),
]
ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A .orbitwise file, or a folder that `learn` wrote.")
]
Target = Annotated[str | None, typer.Option(help="The column (or array) to predict.")]
Ignore = Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")]
BadRows = Annotated[
    Literal["stop", "skip"], typer.Option(help="What to do about empty cells and unreadable images.")
]
Gaps = Annotated[
    Literal["stop", "skip", "fill"],
    typer.Option(
        help="What to do about empty cells and unreadable images: stop, skip such rows, or fill empty "
        "cells of a table with medians, and with a word of their own."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
Device = Annotated[
    str,
    typer.Option(
        callback=check_device,
        help="Where to compute: auto (a GPU if that is faster), cpu, cuda, cuda:1, …",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn at random.")]

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
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Learn what a function should not care about, from the training data alone."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("orbitwise-demo"),
    seed: Seed = 0,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Compare four invariances on built-in images of digits; ends with a table and a report.

    Example: orbitwise demo --out build/demo
    """
    from orbitwise.cli.data import demo_data
    from orbitwise.cli.folders import Folder
    from orbitwise.cli.learning import Run, demo_plan

    data, test = demo_data(seed)
    about = {"data": "digits", "command": f"orbitwise demo --seed {seed}"}
    Run(data, test, demo_plan(seed, device), Folder(out), _console(), about).learn(force=force)


@app.command()
def learn(
    data: DataPath,
    out: Annotated[Path, typer.Option(help="Folder for the model, the report and the comparison.")],
    target: Target = None,
    estimator: Annotated[
        Literal["gp", "sparse", "svc", "laplacian", "ridge", "virtual", "auto"],
        typer.Option(
            help="gp: a Gaussian process with learned invariance, for labels and numbers; the usual choice. "
            "sparse: regression of many rows, with a certificate of how exact it is. svc: kernel machine for "
            "few labels, which penalises change. laplacian: labels that follow clusters of rows. ridge: "
            "regression that penalises change. virtual: support vectors on moved copies. auto: regression "
            "that searches for its kernel.",
        ),
    ] = "gp",
    invariance: Annotated[
        list[str] | None,
        typer.Option(
            help="What should not matter: none, rotation, affine, affine+deformation, flip, permutation, "
            "permutation:A,B,C (these columns are exchanged), sign, … Repeat the option to compare several; "
            "the best is kept. svc, ridge and virtual take one."
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="DATA2",
            help="Data on which predictions are measured; by default x_test and y_test of an .npz file.",
        ),
    ] = None,
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(help="Chosen by the kind of target unless given."),
    ] = None,
    rows: Annotated[int | None, typer.Option(min=2, help="Learn from this many random rows only.")] = None,
    ignore: Ignore = None,
    image_shape: Annotated[
        str | None, typer.Option(metavar="HxW", help="Columns are the pixels of images of this shape.")
    ] = None,
    channels: Annotated[
        Literal["auto", "first", "last"], typer.Option(help="Where arrays of images have their channels.")
    ] = "auto",
    resize: Annotated[
        str | None, typer.Option(metavar="HxW", help="Resize all images to this height x width.")
    ] = None,
    bad_rows: Gaps = "stop",
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that was interrupted.")] = False,
    force: Force = False,
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Stop with the best so far after this time."),
    ] = None,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report.")] = True,
    device: Device = "auto",
    seed: Seed = 0,
    inference: Annotated[
        Literal["auto", "exact", "collapsed", "variational"],
        typer.Option(help="How to compute the posterior; auto chooses by the number of rows."),
    ] = "auto",
    max_iterations: Annotated[
        int | None, typer.Option(min=0, help="Most iterations of each optimisation.")
    ] = None,
    max_nodes: Annotated[
        int | None,
        typer.Option(
            min=2, help="Most transforms of an input to average over; they double up to this number."
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.001, help="Most seconds of each fit; the best so far is then kept."
        ),
    ] = None,
    num_inducing: Annotated[
        str | None,
        typer.Option(
            metavar="auto|N",
            help="Number of inducing points, which summarise all rows, or auto.",
        ),
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Regression: a fixed variance of the noise. Classification: how the noise is chosen.",
        ),
    ] = None,
    likelihood: Annotated[
        str | None, typer.Option(metavar="NAME", help="How labels or numbers are observed.")
    ] = None,
    num_nodes: Annotated[
        int | None, typer.Option(min=2, help="Average over exactly this many transforms of an input.")
    ] = None,
    num_steps: Annotated[
        int | None, typer.Option(min=1, help="Number of stochastic steps; by default until they converge.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any other setting of the estimator; may be repeated."),
    ] = None,
) -> None:
    """Learn from data, and compare invariances by the evidence of the training data.

    The evidence (marginal likelihood) says how probable a model makes these data. No validation set is used.

    Example: orbitwise learn digits.npz --target y --invariance none --invariance affine --out result

    A run that was killed, or stopped with Ctrl-C, resumes with --resume and ends with the same model.

    The models are equal bit for bit if OMP_NUM_THREADS is the same.

    torchrun --nproc-per-node 4 -m orbitwise learn … shares large fits among 4 processes.
    """
    # every option by its name, before there are other local variables
    values = dict(locals())

    from orbitwise.cli.data import Source, held_out_source, infer_task, read
    from orbitwise.cli.estimators import COMPARED, class_of, pairs_of, settings_of
    from orbitwise.cli.folders import Folder
    from orbitwise.cli.invariances import candidates, not_images
    from orbitwise.cli.learning import Plan, Run
    from orbitwise.cli.single import SingleRun

    source = Source(
        data,
        target,
        tuple(ignore or ()),
        skips=bad_rows == "skip",
        fills=bad_rows == "fill",
        resize=size_of(resize, "--resize"),
    )
    as_read = read(source).take(rows, seed)
    read_data = as_read.as_images(size_of(image_shape, "--image-shape"), channels)
    held = held_out_source(source, test)
    held_out = None if held is None else read(held, read_data.expected)
    found = infer_task(read_data.targets) if task is None else task
    chosen = {
        "inference": None if inference == "auto" else inference,
        "max_iterations": max_iterations,
        "max_nodes": max_nodes,
        "max_seconds": max_seconds,
        "num_inducing": num_inducing,
        "noise": noise,
        "likelihood": likelihood,
        "num_nodes": num_nodes,
        "num_steps": num_steps,
        **pairs_of(setting or []),
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    given = settings_of(class_of(estimator, found), chosen)
    is_compared = estimator in COMPARED
    names = candidates(invariance or [], read_data) if is_compared or invariance else []
    plan = Plan(found, names, seed, device, given, estimator)
    about, console = {"data": data, "command": command_of(learn, values)}, _console()
    if not is_compared and time_limit is not None:
        raise CommandError("--time-limit is for --estimator gp and sparse; try --max-seconds")
    kind = Run if is_compared else SingleRun
    run = kind(read_data, held_out, plan, Folder(out), console, about)
    if task is None:
        other = "regression" if found == "classification" else "classification"
        console.print(f"{found} of {read_data.target!r} (use --task {other} if that is wrong)")
    for note in (
        read_data.channels_text if as_read.channels is None else "",
        "" if invariance else not_images(read_data),
    ):
        if note:
            console.print(note, markup=False)
    again = was_restarted()
    if isinstance(run, SingleRun):
        run.learn(resume, force or again)
    else:
        run.learn(resume or again, force and not again, time_limit, with_report)


@app.command()
def predict(
    model: ModelPath,
    data: DataPath,
    out: Annotated[Path, typer.Option("-o", "--out", help="A .csv or .parquet file to write.")],
    target: Target = None,
    ignore: Ignore = None,
    resize: Annotated[
        str | None,
        typer.Option(metavar="HxW", help="Resize all images to this height x width, that of the model's."),
    ] = None,
    bad_rows: BadRows = "stop",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per batch.")] = 1024,
    device: Annotated[
        str | None,
        typer.Option(callback=check_device, help="Where to compute; by default where the model was learned."),
    ] = None,
    force: Force = False,
) -> None:
    """Predict classes and their probabilities, or the mean and standard deviation of new targets.

    Kernel machines without probabilities or deviations give predictions only.

    Example: orbitwise predict result new.csv -o predictions.csv
    """
    from orbitwise.cli.columns import estimator_of
    from orbitwise.cli.data import Source
    from orbitwise.cli.folders import check_new, model_file
    from orbitwise.cli.models import predict as write_predictions
    from orbitwise.estimators.validation import layout_of
    from orbitwise.storage import load

    check_new(out, force)
    fitted = load(model_file(model), device)
    size, shape = size_of(resize, "--resize"), layout_of(estimator_of(fitted)).image_shape
    if size is not None and shape is not None and size != tuple(shape[-2:]):
        own = "x".join(map(str, shape[-2:]))
        raise CommandError(f"--resize {resize}: the model's images are {own}, so give --resize {own}")
    source = Source(data, target, tuple(ignore or ()), skips=bad_rows == "skip", resize=size, part="test")
    count, notes = write_predictions(fitted, source, out, batch_size)
    console = _console()
    for note in notes:
        console.print(f"note: {note}", markup=False)
    console.print(f"{count:,} predictions: {out}", soft_wrap=True)


@app.command()
def report(
    model: ModelPath,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The page; by default MODEL/report.html.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help="The training data; needed for a model file.")
    ] = None,
    test: Annotated[str | None, typer.Option(metavar="DATA2", help="Test data.")] = None,
    target: Target = None,
    force: Force = False,
) -> None:
    """Write the report of a model: what was learned, how certain it is, and how well it predicts.

    Example: orbitwise report result
    """
    from orbitwise.cli.data import Source
    from orbitwise.cli.folders import Folder, check_new, model_file
    from orbitwise.cli.models import report_of_data, report_of_folder
    from orbitwise.storage import load

    file, console = model_file(model), _console()
    page = Folder(file.parent).report if out is None else out
    if out is not None or not model.is_dir():
        check_new(page, force)
    if data is not None:
        held_out = None if test is None else Source(test, target, part="test")
        written = report_of_data(load(file), Source(data, target), held_out, page)
    elif model.is_dir():
        folder = Folder(model)
        # the page inside the folder is written by one process at a time, like all files there
        with folder.writing() if out is None else contextlib.nullcontext():
            written, note = report_of_folder(folder, page)
        if note:
            console.print(f"note: {note}", soft_wrap=True, markup=False)
    else:
        raise CommandError(
            f"the report of {model} needs data: add --data DATA, or give the folder that `learn` wrote"
        )
    console.print(f"report: {written}", soft_wrap=True)


@app.command()
def show(model: ModelPath) -> None:
    """Show a model on one screen: learned ranges, evidence, data and versions.

    Example: orbitwise show result
    """
    from orbitwise.cli.folders import model_file
    from orbitwise.cli.showing import model_table

    _console().print(model_table(model_file(model)))


@app.command()
def export(
    model: ModelPath,
    to: Annotated[
        Literal["torchvision", "kornia", "albumentations", "json"],
        typer.Option(help="For which library, or as JSON."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The file: .py for a library, .json for JSON.")],
    builtin: Annotated[
        bool,
        typer.Option(
            "--builtin", help="Use the most similar transform of the library instead of the exact one."
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Export the learned invariance for other code: a Python file with a `transform`, or JSON.

    Example: orbitwise export result --to torchvision -o augmentation.py
    """
    from orbitwise.cli.folders import check_new, model_file
    from orbitwise.cli.models import exported
    from orbitwise.storage import load, write_atomically

    check_new(out, force)
    ending = ".json" if to == "json" else ".py"
    if out.suffix != ending:
        raise CommandError(f"{out} must end in {ending} for --to {to}")
    text, note, was_run = exported(load(model_file(model)), to, out.stem, builtin)
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
    from orbitwise.cli.showing import datasets_table

    _console().print(datasets_table())


@app.command("reproduce")
def reproduce_results(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A result that --list names, or all.")
    ] = None,
    listed: Annotated[
        bool,
        typer.Option("--list", help="List the results, or the cells of NAME, and how long they take."),
    ] = False,
    scale: Annotated[
        Literal["tiny", "cpu", "full"],
        typer.Option(
            help="cpu: smaller data, minutes on two cores. full: as in the source, mostly on a GPU. tiny: "
            "seconds, to see that it runs."
        ),
    ] = "cpu",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds; by default 1, at full scale 3.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for NAME.json and NAME.png; by default orbitwise-reproduction/SCALE."),
    ] = None,
    device: Device = "auto",
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Begin no further cell after this time."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compute again what is there.")] = False,
) -> None:
    """Compute a figure or table of the sources again, and say which of its statements hold.

    Example: orbitwise reproduce lim-fig2

    A result consists of cells, such as one model with one seed. The record is written after each cell, and
    a run that was stopped resumes with the cells that are missing. With more --seeds, the record is extended.
    """
    from orbitwise.cli.reproducing import listing, reproduce

    console = _console()
    if listed or name is None:
        console.print(listing(name, scale, seeds, out))
        return
    options = {"--scale": (scale, "cpu"), "--seeds": (seeds, None), "--device": (device, "auto")}
    changed = [f" {option} {value}" for option, (value, usual) in options.items() if value != usual]
    command = "orbitwise reproduce {}" + "".join(changed)
    reproduce(name, scale, seeds, out, device, command, console, time_limit, force)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status. Errors are one sentence, unless `--debug` is given.

    Of several processes that torchrun started, the first one runs it, and the others share its fits.
    """
    return run_in_first(lambda: _run(arguments)) if are_several() else _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        words = [each for each in given if each != "--debug"]
        with contextlib.nullcontext() if debug else _readable_warnings():
            status = _without_types(app).main(words, prog_name="orbitwise", standalone_mode=False)
    except KeyboardInterrupt:
        status = INTERRUPTED
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
    if status == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return status if isinstance(status, int) else 0


def command_of(command: Callable[..., None], values: Mapping[str, object]) -> str:
    """The command line of a call on DATA: all options but flags that differ from their defaults."""
    words = ["orbitwise", command.__name__, str(values["data"])]
    for name, parameter in inspect.signature(command).parameters.items():
        value = values[name]
        if name == "data" or isinstance(value, bool) or value is None or value == parameter.default:
            continue
        for each in value if isinstance(value, list) else [value]:
            words += [f"--{name.replace('_', '-')}", str(each)]
    return shlex.join(words)


def _without_types(app: typer.Typer) -> TyperGroup:
    """The command as typer makes it, without <bool> after each flag in the help."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for command in (group, *group.commands.values()):
        for option in command.get_params(typer.Context(command)):
            if getattr(option, "is_flag", False):
                option.metavar = ""
    return group


def size_of(text: str | None, option: str) -> tuple[int, int] | None:
    """Height and width, as in 28x28."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)x(\d+)", text.strip().lower())
    if found is None or min(map(int, found.groups())) < 1:
        raise CommandError(f"{option} {text}: give height and width as in 28x28")
    return int(found[1]), int(found[2])


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
    # output that is not a terminal has no width of its own
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)
