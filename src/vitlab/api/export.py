"""Models as programs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.api.given import data_name, named
from vitlab.data.decoding import StrPath
from vitlab.models.contract import Model

if TYPE_CHECKING:
    from vitlab.exporting.int8 import Quantized
    from vitlab.exporting.program import Exported, Precision, Sizes


def export(
    model: Model | StrPath,
    path: StrPath,
    *,
    sizes: "Sizes" = "auto",
    precision: "Precision" = "float32",
    pixels: bool = False,
    opset: int = 20,
) -> "Exported":
    """A model as a program: ONNX (.onnx) or torch.export's (.pt2), for any batch and, where it can be, any image size.

    Nothing is written unless it gives what the model gives. With `pixels` it takes bytes [B, H, W, 3] of resized
    pictures and normalises them itself.
    """
    from vitlab.exporting import program as exporting

    form = exporting.Form(sizes=sizes, precision=precision, pixels=pixels, opset=opset)
    return exporting.export(named(model)[0], Path(path), form)


def export_int8(
    model: Model | StrPath,
    path: StrPath,
    *,
    data: StrPath | None = None,
    split: str | None = None,
    sizes: "Sizes" = "auto",
    pixels: bool = False,
    opset: int = 20,
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> "Quantized":
    """An ONNX program whose products are of 8-bit numbers, and `path`.json: its size, speed and accuracy on `data`."""
    from vitlab.exporting.int8_accuracy import export_measured
    from vitlab.exporting.program import Form

    form = Form(sizes=sizes, pixels=pixels, opset=opset)
    loaded, target = named(model)[0], Path(path)
    return export_measured(loaded, target, form, data_name(data), split=split, batch_size=batch_size, progress=progress)
