"""ONNX files: an exported program converted, written with its notes, read and run."""

import contextlib
import importlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.export import ExportedProgram

from vitlab.core.errors import MissingDependencyError

Array: TypeAlias = np.ndarray[Any, Any]

OPSETS = (18, 23)  # the first that torch's converter writes, and the last that onnxruntime has had for a while
LARGEST = 2**31 - 2**24  # bytes that one file may have: protobuf's limit, with some room for the graph
FOLDED = 2**40  # bytes up to which constants are computed beforehand: all of them


def imported(name: str) -> Any:
    """One of the packages that ONNX needs, or an error that says how to get them."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        raise MissingDependencyError(
            f"ONNX files need the package {name.partition('.')[0]}: pip install 'vitlab[export]'."
        ) from error


def check_installed() -> None:
    """Refuse at once what could only fail later."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        imported(name)


def convert(
    program: ExportedProgram, *, opset: int, input_name: str, output_name: str, symbols: Mapping[str, str]
) -> Any:
    """The program as an ONNX program in memory; `symbols` are better names for the program's unknown sizes."""
    with _quietly(), torch.no_grad():  # with gradients, attention would be taken apart
        converted = torch.onnx.export(
            program,
            input_names=[input_name],
            output_names=[output_name],
            opset_version=opset,
            custom_translation_table=_translations(),
            dynamo=True,
            verbose=False,
        )
    assert converted is not None
    _fold(converted.model)
    _keep_padding(converted.model)
    _rename(converted.model, symbols)
    return converted


def write(converted: Any, path: Path, notes: Mapping[str, str]) -> None:
    """The file, with `path`.data beside it where one file would be too large."""
    model = converted.model
    model.producer_name = "vitlab"
    model.metadata_props.update(notes)
    weights = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    converted.save(path, external_data=weights > LARGEST)
    imported("onnx").checker.check_model(str(path), full_check=weights <= LARGEST)


def read_notes(path: Path) -> dict[str, str]:
    """What was noted in a file: family, config, preprocess, labels."""
    model = imported("onnx").load(str(path), load_external_data=False)
    return {entry.key: entry.value for entry in model.metadata_props}


def runner(path: Path) -> Callable[[Array], Array]:
    """A function of one input to one output that runs the file by onnxruntime on the CPU."""
    runtime = imported("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what goes wrong is raised too
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


@contextlib.contextmanager
def without_root_handler() -> Iterator[None]:
    """onnxruntime's quantiser gives the root logger a handler where it has none, and every warning would come twice."""
    nothing = logging.NullHandler()
    logging.root.addHandler(nothing)
    try:
        yield
    finally:
        logging.root.removeHandler(nothing)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch's converter and its optimizer say about themselves."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _translations() -> dict[Any, Callable[..., Any]]:
    """What onnxscript 0.7 does not translate where a size is not known beforehand."""
    op = imported("onnxscript").opset18
    core = imported("onnxscript.function_libs.torch_lib.ops.core")

    def remainder(value: Any, divisor: Any) -> Any:
        """There, the divisor has to be a number; an expert's room is a size."""
        if isinstance(divisor, int | float):
            return core.aten_remainder_scalar(value, divisor)
        return op.Mod(value, op.CastLike(divisor, value))  # signs as in Python: those of the divisor

    return {torch.ops.aten.remainder.Scalar: remainder}


def _fold(model: Any) -> None:
    """Everything that depends on weights alone is computed now: slices of them, norms taken into filters."""
    optimizer, passes = imported("onnxscript.optimizer"), imported("onnx_ir.passes.common")
    with _quietly():
        optimizer.fold_constants(model, input_size_limit=FOLDED, output_size_limit=FOLDED)
        passes.LiftConstantsToInitializersPass()(model)
        optimizer.remove_unused_nodes(model)


def _keep_padding(model: Any) -> None:
    """A maximum with the least number between each padding and the max-pool after it.

    onnxruntime takes the padding into the pool, where it becomes minus infinity whatever it was; BiT's is zero.
    """
    ir = imported("onnx_ir")
    for node in [node for node in model.graph if node.op_type == "MaxPool"]:
        padded = node.inputs[0]
        if padded.producer() is None or padded.producer().op_type != "Pad":
            continue
        least = ir.tensor(np.array(np.finfo(padded.dtype.numpy()).min, padded.dtype.numpy()))
        constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", least)])
        kept = ir.Node("", "Max", [padded, constant.outputs[0]])
        kept.outputs[0].shape, kept.outputs[0].type = padded.shape, padded.type
        model.graph.insert_before(node, [constant, kept])
        node.replace_input_with(0, kept.outputs[0])


def renamed(size: str, symbols: Mapping[str, str]) -> str:
    """A size that was not known, in names that say what it is: '16*rows' for '16*s30'."""
    return re.sub(r"\w+", lambda match: symbols.get(match[0], match[0]), size)


def _rename(model: Any, symbols: Mapping[str, str]) -> None:
    ir = imported("onnx_ir")
    values = [*model.graph.inputs, *(output for node in model.graph.all_nodes() for output in node.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape(
                renamed(size.value, symbols) if isinstance(size, ir.SymbolicDim) and size.value is not None else size
                for size in value.shape
            )
