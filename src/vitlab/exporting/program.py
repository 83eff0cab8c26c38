"""A model as a program for others to run: ONNX, or torch.export's; checked against the model before it is kept."""

import copy
import dataclasses
import functools
import json
import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitlab.core.config import check_fields, to_dict
from vitlab.core.errors import Error, ImageError
from vitlab.core.files import sync
from vitlab.core.record import VERSION
from vitlab.exporting import onnx_file
from vitlab.models.coatnet import CoAtNetConfig
from vitlab.models.contract import Model
from vitlab.models.create import family_name
from vitlab.models.resnet import StandardizedConv
from vitlab.models.vit import ViTConfig

Array: TypeAlias = np.ndarray[Any, Any]
Sizes: TypeAlias = Literal["auto", "any", "own"]
Precision: TypeAlias = Literal["float32", "float16"]

SUFFIXES = {".onnx": "ONNX", ".pt2": "torch.export"}
TOLERANCE: dict[Precision, float] = {"float32": 1e-4, "float16": 2e-2}  # of the largest logit
NOTES = "vitlab.json"  # in a .pt2
log = logging.getLogger("vitlab")


class ExportError(Error):
    """A model that cannot be exported as asked."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What the program takes and is made of."""

    sizes: Sizes = "auto"  # any: images of any size; own: of the model's; auto: any where that can be
    precision: Precision = "float32"  # of the arithmetic; inputs and outputs are float32 in any case
    pixels: bool = False  # bytes [B, H, W, 3] of resized pictures, normalised inside, instead of images [B, 3, H, W]
    opset: int = 20  # of ONNX

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Check:
    """A batch that was run both ways; the error is the largest difference over the largest logit."""

    batch: int
    size: tuple[int, int]
    error: float


@dataclass(frozen=True)
class Exported:
    """What was written; `input` has a number for each fixed size and a name for each free one."""

    path: Path
    format: str
    input: tuple[int | str, ...]
    any_size: bool
    checks: tuple[Check, ...]
    bytes: int

    @property
    def error(self) -> float:
        return max(check.error for check in self.checks)


def export(model: Model, path: Path, form: Form = Form()) -> Exported:  # noqa: B008  frozen
    """Write `path`, .onnx or .pt2, whole and only if it gives what the model gives, at two sizes and two batches."""
    check_path(path)
    if not onnx_file.OPSETS[0] <= form.opset <= onnx_file.OPSETS[1]:
        raise ExportError(f"opset must be {onnx_file.OPSETS[0]} to {onnx_file.OPSETS[1]}, not {form.opset}.")
    if form.pixels and model.config.channels != 3:
        raise ExportError(f"Pictures have 3 channels and the model takes {model.config.channels}: leave pixels out.")
    reference = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as name:
        made = _made_as_asked(reference, Path(name, path.name), form)
        place(made.path, path)
    return dataclasses.replace(made, path=path)


def check_path(path: Path) -> None:
    """Refuse a name that no program can have, and a format whose packages are missing."""
    if path.suffix not in SUFFIXES:
        raise ExportError(f"{path}: an exported program is a file that ends in {' or '.join(SUFFIXES)}.")
    if path.is_dir():
        raise ExportError(f"{path} is a folder; give the name of a file to write.")
    if path.suffix == ".onnx":
        onnx_file.check_installed()


def place(made: Path, path: Path) -> None:
    """Everything beside `made` into the folder of `path`, the program itself after what it reads."""
    for file in sorted(made.parent.iterdir(), key=lambda file: file == made):
        sync(file)
        file.replace(path.parent / file.name)
    sync(path.parent)


def notes_of(model: Model, form: Form) -> dict[str, str]:
    """What a program's user has to know, as texts: the architecture, and how pictures become its input."""
    layout = "uint8 [batch, height, width, 3], resized" if form.pixels else "float32 [batch, channels, height, width]"
    notes = {
        "vitlab": VERSION,
        "family": family_name(model.config),
        "config": json.dumps(to_dict(model.config)),
        "preprocess": json.dumps(to_dict(model.preprocess)),
        "input": f"{layout}, {'normalised inside' if form.pixels else '(x / 255 - mean) / std'}",
    }
    if model.labels is not None:
        notes["labels"] = json.dumps(list(model.labels), ensure_ascii=False)
    if model.multi_label:
        notes["probabilities"] = "a sigmoid of each class's logit"
    return notes


@final
class _Program(nn.Module):
    """The model between inputs and outputs of float32, or from bytes."""

    def __init__(self, model: Model, form: Form) -> None:
        super().__init__()
        self.model, self.form = model.half() if form.precision == "float16" else model, form

    def forward(self, images: Tensor) -> Tensor:
        if self.form.pixels:
            spec = self.model.preprocess
            mean, std = (torch.tensor(values)[:, None, None] for values in (spec.mean, spec.std))
            images = (images.permute(0, 3, 1, 2).float() / 255 - mean) / std
        if self.form.precision == "float16":
            images = images.half()
        return self.model(images).float()


def _still(model: Model) -> Model:
    """A copy whose filters are standardised once and for all."""
    still = copy.deepcopy(model)
    for module in still.modules():
        if isinstance(module, StandardizedConv):
            module.weight = nn.Parameter(module.standardised(), requires_grad=False)
            module.standardised = functools.partial(_weight, module)
    return still


def _weight(module: nn.Conv2d) -> Tensor:
    return module.weight


def _made_as_asked(model: Model, path: Path, form: Form) -> Exported:
    """For images of any size, or where that cannot be and need not be, of the model's own."""
    if form.sizes != "own":
        try:
            return _made(model, path, form, any_size=True)
        except ExportError as error:
            if form.sizes == "any":
                raise
            log.warning("%s The program takes images of %s px only.", error, _by(model.config.image_size))
    for file in path.parent.iterdir():
        file.unlink()
    return _made(model, path, form, any_size=False)


def _made(model: Model, path: Path, form: Form, *, any_size: bool) -> Exported:
    """The program at `path`, checked against the model as it is."""
    program = _trace(_Program(_still(model), form), model, form, any_size=any_size)
    (name,) = program.graph_signature.user_inputs
    shape = next(node for node in program.graph.nodes if node.name == name).meta["val"].shape
    symbols = _symbols(shape, model.config, form)
    sizes = [model.config.image_size, *([_other_size(model.config)] if any_size else [])]
    _accept_sizes(program, sizes, model, form)
    if path.suffix == ".onnx":
        try:
            converted = onnx_file.convert(
                program,
                opset=form.opset,
                input_name="pixels" if form.pixels else "images",
                output_name="logits" if model.config.num_classes else "features",
                symbols=symbols,
            )
            onnx_file.write(converted, path, notes_of(model, form))
            run = onnx_file.runner(path)
        except OSError:
            raise
        except Exception as error:  # torch's, onnx's or onnxruntime's
            raise ExportError(f"This model cannot be translated to ONNX ({_reason(error)}).") from error
    else:
        torch.export.save(program, path, extra_files={NOTES: json.dumps(notes_of(model, form), ensure_ascii=False)})
        module = torch.export.load(path).module()
        run = functools.partial(_run, module)
    checks = tuple(_check(model, run, form, batch, size) for size in sizes for batch in (1, 3))
    worst = max(checks, key=lambda check: check.error)
    if not worst.error <= TOLERANCE[form.precision]:
        raise ExportError(
            f"The exported program is off by {worst.error:.1e} of the largest logit at {_by(worst.size)} px, more than"
            f" {TOLERANCE[form.precision]:.0e}: it is not kept."
        )
    named = tuple(size if isinstance(size, int) else onnx_file.renamed(str(size), symbols) for size in shape)
    size = sum(file.stat().st_size for file in path.parent.iterdir())
    return Exported(path, SUFFIXES[path.suffix], named, any_size, checks, size)


def _trace(program: _Program, model: Model, form: Form, *, any_size: bool) -> ExportedProgram:
    height, width = model.config.image_size
    free: dict[int, Any] = {0: Dim("batch")}
    if any_size:
        height, width = 2 * height, 3 * width  # unlike the model's own and each other; nothing of that size is computed
        rows, columns = _free_sides(model.config)
        free |= {1: rows, 2: columns} if form.pixels else {2: rows, 3: columns}
    images = sample_images(3, (height, width), model.config.channels, form)
    try:
        with torch.no_grad():  # with gradients, attention would take other shapes
            return torch.export.export(program, (images,), dynamic_shapes=(free,))
    except ImageError as error:
        raise ExportError("This model takes images of one size.") from error
    except Exception as error:  # of many kinds, torch's and those of the model
        what = "images of any size" if any_size else "batches of any number of images"
        raise ExportError(f"This model cannot be exported for {what} ({_reason(error)}).") from error


def _unit(config: Any) -> int | None:
    """What divides the sides of the images that a model takes, where that is known."""
    if isinstance(config, ViTConfig):
        return config.patch_size
    return 2 * math.prod(config.strides) if isinstance(config, CoAtNetConfig) else None


def _free_sides(config: Any) -> tuple[Any, Any]:
    """Multiples of the unit, or whatever the network's own layers allow."""
    unit = _unit(config)
    if unit is None:
        return Dim.DYNAMIC, Dim.DYNAMIC
    if any(side % unit for side in config.image_size):
        raise ExportError(
            f"This model pads images whose sides {unit} does not divide, and cannot be exported for images of any size."
        )
    return unit * Dim("rows"), unit * Dim("columns")


def _other_size(config: Any) -> tuple[int, int]:
    """A second size to check: somewhat larger, or twice as high where it is not known which sizes fit."""
    unit, (height, width) = _unit(config), config.image_size
    return (2 * height, width) if unit is None else (height + unit, width + 2 * unit)


def _symbols(shape: Sequence[Any], config: Any, form: Form) -> dict[str, str]:
    """Names for the program's free sizes: 'batch', and 'rows' and 'columns' of patches or 'height' and 'width'."""
    places = (0, 1, 2) if form.pixels else (0, 2, 3)
    names = ("batch", "height", "width") if _unit(config) is None else ("batch", "rows", "columns")
    found: dict[str, str] = {}
    for place, name in zip(places, names, strict=True):
        if not isinstance(shape[place], int):
            for symbol in shape[place].node.expr.free_symbols:
                found[str(symbol)] = name
    return found


def _accept_sizes(program: ExportedProgram, sizes: Sequence[tuple[int, int]], model: Model, form: Form) -> None:
    """Take away the conditions that a size must not be the model's own; a program with others is refused.

    Traced at another size, where positions are resized, a program asks not to be given its own; there resizing changes
    nothing, and the check that follows shows it.
    """
    guards: list[str] = list(getattr(program, "_guards_code", ()))  # a torch without it has nothing to take away
    kept = list(guards)
    for size in sizes:
        images = sample_images(2, size, model.config.channels, form).to("meta")
        for guard in [*kept]:
            if eval(guard, {"L": {"images": images}, "math": math, "torch": torch}):
                continue
            if "!=" not in guard:
                raise ExportError(f"What this model computes at {_by(size)} px is not what it computes at other sizes.")
            kept.remove(guard)
    if kept != guards:
        program._guards_code = kept


def _check(model: Model, run: Callable[[Array], Array], form: Form, batch: int, size: tuple[int, int]) -> Check:
    images = sample_images(batch, size, model.config.channels, form)
    with torch.inference_mode():
        wanted = _Program(model, Form(pixels=form.pixels))(images).numpy()
    try:
        got = run(images.numpy())
    except Exception as error:  # whatever kind the runtime's is
        raise ExportError(f"The exported program does not run at {_by(size)} px ({_reason(error)}).") from error
    largest = float(np.abs(wanted).max(initial=0))
    if largest == 0:
        log.warning("All of the model's answers are 0: its head is fresh, and the check says little.")
    error = float(np.abs(got - wanted).max(initial=0)) / (largest or 1.0) if got.shape == wanted.shape else math.inf
    return Check(batch, size, error)


def _run(module: nn.Module, images: Array) -> Array:
    with torch.no_grad():
        return module(torch.from_numpy(images)).numpy()


def sample_images(batch: int, size: tuple[int, int], channels: int, form: Form) -> Tensor:
    """A program's input, of noise."""
    generator = torch.Generator().manual_seed(batch)
    if form.pixels:
        return torch.randint(0, 256, (batch, *size, 3), dtype=torch.uint8, generator=generator)
    return torch.randn(batch, channels, *size, generator=generator)


def _reason(error: BaseException) -> str:
    """The first line that says something, of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")[:300]


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
