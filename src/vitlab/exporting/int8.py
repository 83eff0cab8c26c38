"""ONNX files whose products are of 8-bit whole numbers: weights stored so, inputs rounded as they come."""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from vitlab.exporting import onnx_file
from vitlab.exporting.program import Exported, ExportError, Form, check_path, export, place, sample_images
from vitlab.models.contract import Model

Array: TypeAlias = np.ndarray[Any, Any]
Runner: TypeAlias = Callable[[Array], Array]

PRODUCTS = ("MatMul", "Gemm")  # what is quantised; convolutions, norms and attention stay in float32
MARK = "onnx.quant.pre_process"  # what the quantiser looks for before it asks for shapes that are there already
BATCH = 8  # images that are timed together
ROUNDS = 7


@dataclass(frozen=True)
class Timing:
    """Seconds that a batch takes on this machine's CPU, medians of rounds in turn."""

    batch: int
    float32: float
    int8: float

    @property
    def ratio(self) -> float:
        """How many times as fast the 8-bit program is."""
        return self.float32 / self.int8


@dataclass(frozen=True)
class Quantized:
    """An 8-bit program beside the float32 one that it was made of, which was checked and is not kept."""

    exported: Exported  # the file that was written; its checks are those of the float32 program
    products: int  # how many were changed
    bytes_float32: int
    difference: float  # the largest difference between both over the largest logit, on images of noise
    timing: Timing
    measured: Mapping[str, Any] | None  # what the caller's function found

    def record(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "program": self.exported.path.name,
            "input": list(self.exported.input),
            "products": self.products,
            "bytes": {"float32": self.bytes_float32, "int8": self.exported.bytes},
            "seconds per batch": {
                "images": self.timing.batch,
                "float32": self.timing.float32,
                "int8": self.timing.int8,
            },
            "times as fast": self.timing.ratio,
            "difference on noise": self.difference,
            "accuracy": None if self.measured is None else dict(self.measured),
        }


def export_int8(
    model: Model, path: Path, form: Form, measure: Callable[[Runner, Runner], Mapping[str, Any]] | None = None
) -> Quantized:
    """Write `path` with 8-bit products; `measure` is given both programs before it is kept."""
    if path.suffix != ".onnx" or form.precision != "float32":
        raise ExportError("int8 is for ONNX files made of float32: give a name that ends in .onnx, and no float16.")
    check_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as name:
        before, folder = Path(name, "float32.onnx"), Path(name, "int8")
        folder.mkdir()
        exported = export(model, before, form)
        products = quantize(before, folder / path.name)
        float32, int8 = onnx_file.runner(before), onnx_file.runner(folder / path.name)
        images = sample_images(BATCH, model.config.image_size, model.config.channels, form).numpy()
        wanted, got = float32(images), int8(images)
        difference = float(np.abs(got - wanted).max() / (np.abs(wanted).max() or 1.0))
        timing = _compare_speed(float32, int8, images)
        measured = None if measure is None else measure(float32, int8)
        size = sum(file.stat().st_size for file in folder.iterdir())
        place(folder / path.name, path)
    written = dataclasses.replace(exported, path=path, bytes=size)
    return Quantized(written, products, exported.bytes, difference, timing, measured)


def quantize(source: Path, target: Path) -> int:
    """Write the 8-bit program of a float32 one, with its notes; the number of products that it changed.

    Weights have a scale for each output; the scale of an input is found when it comes.
    """
    onnx = onnx_file.imported("onnx")
    model = onnx.load(str(source))
    del model.graph.value_info[:]  # among them shapes of weights that the quantiser turns round
    model.metadata_props.add(key=MARK, value="onnxruntime.quant")
    with onnx_file.without_root_handler():
        quantization = onnx_file.imported("onnxruntime.quantization")
        quantization.quantize_dynamic(
            model,
            target,
            op_types_to_quantize=list(PRODUCTS),
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            use_external_data_format=source.with_name(f"{source.name}.data").exists(),
        )
    model = onnx.load(str(target), load_external_data=False)
    changed = sum(node.op_type == "MatMulInteger" for node in model.graph.node)
    if not changed:
        raise ExportError("No layer of this model is a product with weights that 8 bits could hold: leave int8 out.")
    notes = onnx_file.read_notes(source) | {"quantised": f"int8, dynamic, a scale an output: {', '.join(PRODUCTS)}"}
    del model.metadata_props[:]
    for key, value in notes.items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, str(target))
    onnx.checker.check_model(str(target))
    return changed


def _compare_speed(float32: Runner, int8: Runner, images: Array) -> Timing:
    """Both programs on the same images, in turn, after one round that does not count."""
    spent: dict[str, list[float]] = {"float32": [], "int8": []}
    for _ in range(ROUNDS + 1):
        for name, run in (("float32", float32), ("int8", int8)):
            start = time.perf_counter()
            run(images)
            spent[name].append(time.perf_counter() - start)
    return Timing(len(images), *(statistics.median(spent[name][1:]) for name in ("float32", "int8")))
