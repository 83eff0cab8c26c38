"""`vitlab convert`: a checkpoint from one format to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json
from vitlab.core.words import one_line

if TYPE_CHECKING:
    from vitlab.models.contract import Model

DESCRIPTION = """Read a checkpoint of any format, adapt it where asked, and write it in another.

Examples:
  vitlab convert B_16.npz vit-b16/
  vitlab convert B_16.npz model.safetensors --format timm
  vitlab convert vit-b16/ pets/ --set num_classes=37 image_size=384
  vitlab convert vit-b16/ wide/ --set image_size=224,384
  vitlab convert runs/pets pets/ --dtype float16
"""


@dataclass(frozen=True)
class Arguments:
    source: Annotated[Positional[str], arg(metavar="SOURCE")]
    """A checkpoint: a file or folder of any format that vitlab reads, or hf-hub:owner/name."""
    dest: Annotated[Positional[Path], arg(metavar="DEST")]
    """What to write: a folder or a file, depending on the format."""
    format: Literal["vitlab", "google", "big_vision", "timm", "hf", "torchvision"] = "vitlab"
    """The format to write."""
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """The type in which the vitlab format stores weights, by default float32; they always load as float32."""
    overrides: Annotated[
        UseAppendAction[tuple[tuple[str, ...], ...]],
        arg(name="set", metavar="FIELD=VALUE..."),
    ] = ()
    """Fields of the configuration to change: numbers, true, false, null, names, or lists such as 224,384."""
    json: bool = False
    """Print what was done as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab convert", description=DESCRIPTION)
    from vitlab import api
    from vitlab.core.config import parse_assignments

    changes = parse_assignments([item for group in given.overrides for item in group], where="--set")

    model = api.load(given.source, **changes)
    if not given.json:
        print(one_line(f"Read {given.source}: {_describe(model)}."))
    api.save(model, given.dest, format=given.format, dtype=given.dtype)
    if not given.json:
        print(one_line(f"Wrote {given.dest} in the {given.format} format."))
        return 0
    from vitlab.models.counts import count_parameters

    print_json(
        {
            "source": given.source,
            "path": str(given.dest),
            "format": given.format,
            "dtype": given.dtype or "float32",
            "image_size": list(model.config.image_size),
            "num_classes": model.config.num_classes,
            "parameters": count_parameters(model),
        }
    )
    return 0


def _describe(model: "Model") -> str:
    from vitlab.models.counts import count_parameters

    height, width = model.config.image_size
    classes = f"{model.config.num_classes} classes" if model.config.num_classes else "no classifier"
    return f"{height} x {width} px, {classes}, {count_parameters(model) / 1e6:.2f} M parameters"
