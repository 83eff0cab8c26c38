"""`vitlab export`: a model as a program for others to run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, progress_bar
from vitlab.core.words import one_line

if TYPE_CHECKING:
    from vitlab.exporting.int8 import Quantized
    from vitlab.exporting.program import Exported

DESCRIPTION = """Write a model as an ONNX program (DEST.onnx) or as torch.export's (DEST.pt2).

The program takes any number of images, of any size if the model does. Its results are compared with the model's at two
image sizes and two batch sizes, and it is written only if they agree. Preprocessing, class names and configuration are
in its metadata.

Examples:
  vitlab export runs/mine mine.onnx
  vitlab export hf-hub:google/vit-base-patch16-224 vit.onnx --pixels
  vitlab export runs/mine mine.onnx --int8 --data photos/
  vitlab export runs/mine mine.pt2 --sizes own
"""


@dataclass(frozen=True)
class Arguments:
    source: Annotated[Positional[str], arg(metavar="SOURCE")]
    """A run, a folder, a file, a checkpoint's name, hf-hub:owner/name."""
    dest: Annotated[Positional[Path], arg(metavar="DEST")]
    """The file to write: .onnx or .pt2."""
    sizes: Literal["auto", "any", "own"] = "auto"
    """Accept images of any size, only of the model's own size, or (auto) of any size if possible."""
    image_size: int | None = None
    """The model's own side in pixels, instead of the one it was trained at."""
    pixels: bool = False
    """Take bytes [batch, height, width, 3] of resized pictures, and normalise them in the program."""
    precision: Literal["float32", "float16"] = "float32"
    """float16: weights and arithmetic in half precision, for a GPU."""
    opset: int = 20
    """The version of ONNX's operators, 18 to 23."""
    int8: bool = False
    """Round weights and inputs of matrix products to 8 bits (ONNX): smaller, and faster on a CPU."""
    data: str | None = None
    """With --int8: the data set on which its accuracy is compared."""
    split: str | None = None
    """The part of the data; by default test, or else val."""
    json: bool = False
    """Print what was done as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab export", description=DESCRIPTION)
    from vitlab import api
    from vitlab.core.errors import Error
    from vitlab.exporting.program import check_path

    if not given.int8 and (given.data is not None or given.split is not None):
        raise Error("--data and --split are what --int8 is measured on: add --int8, or leave them out.")
    if given.int8 and given.precision != "float32":
        raise Error("--int8 starts from float32: leave --precision out.")
    check_path(given.dest)
    model = api.load(given.source, image_size=given.image_size)
    if not given.int8:
        exported = api.export(
            model, given.dest, sizes=given.sizes, precision=given.precision, pixels=given.pixels, opset=given.opset
        )
        if given.json:
            print_json(_facts(exported))
        else:
            _tell(exported)
        return 0
    with progress_bar("Comparing", 100) as progress:
        quantized = api.export_int8(
            model,
            given.dest,
            data=given.data,
            split=given.split,
            sizes=given.sizes,
            pixels=given.pixels,
            opset=given.opset,
            progress=progress,
        )
    if given.json:
        print_json(quantized.record())
    else:
        _tell_int8(quantized)
    return 0


def _facts(exported: "Exported") -> dict[str, Any]:
    return {
        "path": str(exported.path),
        "format": exported.format,
        "input": list(exported.input),
        "bytes": exported.bytes,
        "checks": [
            {"images": check.batch, "size": list(check.size), "relative_error": check.error}
            for check in exported.checks
        ],
    }


def _tell(exported: "Exported") -> None:
    for check in exported.checks:
        height, width = check.size
        print(
            f"Checked {check.batch} x {height} x {width} px: largest difference {check.error:.1e} of the largest logit."
        )
    shape = ", ".join(map(str, exported.input))
    print(
        one_line(
            f"Wrote {exported.path} ({exported.format}, {exported.bytes / 1e6:.1f} MB); it takes images [{shape}]."
        )
    )


def _tell_int8(quantized: "Quantized") -> None:
    _tell(quantized.exported)
    timing, size = quantized.timing, quantized.exported.bytes / quantized.bytes_float32
    print(
        f"In 8 bits: {quantized.products} products, {size:.0%} of the size, {timing.ratio:.2f} times as fast on this"
        f" CPU ({timing.batch} images: {1e3 * timing.float32:.1f} ms, now {1e3 * timing.int8:.1f} ms)."
    )
    found = quantized.measured
    if found is None:
        print("Its accuracy was not measured: give --data.")
        return
    print(
        one_line(
            f"Top-1 on {found['images']} images of {found['data']} ({found['split']}): {found['top-1 float32']:.2%}, in"
            f" 8 bits {found['top-1 int8']:.2%}, {100 * found['difference']:+.2f} points; the same class on"
            f" {found['same class']}."
        )
    )
