"""transformers' preprocessor_config.json to our preprocessing spec and back."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitlab.core.errors import CheckpointError
from vitlab.core.preprocess import FILTERS, IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocess
from vitlab.models.vit import ViTConfig
from vitlab.weights.files.tensors import read_json
from vitlab.weights.hf.vit_config import ANY_SIZE

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

# Of the released checkpoints; for a folder that does not say. Edges are in proportion to an input of 224 px.
PAPER = Preprocess()
AUTHORS = Preprocess(
    resize="shortest", shortest_edge=256, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD
)
DEFAULTS: dict[str, Preprocess] = {
    "vit": PAPER,
    "bit": PAPER,
    "cvt": AUTHORS,
    "vit_mae": AUTHORS,
    "vit_msn": AUTHORS,
    "ijepa": AUTHORS,
    "deit": AUTHORS,
    "dinov2": AUTHORS,
    "dinov2_with_registers": AUTHORS,
    "dinov3_vit": Preprocess(mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "clip_vision_model": Preprocess(resize="shortest", interpolation="bicubic", mean=CLIP_MEAN, std=CLIP_STD),
    "siglip_vision_model": replace(PAPER, interpolation="bicubic"),
}
RESAMPLE: dict[int, Interpolation] = {int(number): name for name, number in FILTERS.items()}
BY_SHORTEST_EDGE = ("CLIP", "Bit", "ChineseCLIP", "ConvNext")  # whose plain `size: 224` means the shorter edge


def find_preprocess(folder: Path, kind: str, size: tuple[int, int], assumed: list[str]) -> tuple[Preprocess, str]:
    """The folder's preprocessing, or its model type's default where the folder has none, and the file's name."""
    default = DEFAULTS[kind].with_size(size)
    where, data = _find(folder)
    if data is None:
        assumed.append(f"No preprocessor_config.json in the folder: the preprocessing usual for '{kind}' was assumed.")
        return default, where.name
    return _parse(data, default, str(where), assumed), where.name


def read_preprocess(folder: Path, kind: str, config: ViTConfig, assumed: list[str]) -> Preprocess:
    """The preprocessing of `find_preprocess`, at a size that the model takes."""
    found, name = find_preprocess(folder, kind, config.image_size, assumed)
    covered = tuple(side // config.patch_size * config.patch_size for side in found.size)
    size = (covered[0], covered[1]) if kind in ANY_SIZE and min(covered) > 0 else config.image_size
    if size != found.size:
        assumed.append(f"{name} asks for {_by(found.size)} px, which the model does not take: {_by(size)} it is.")
        found = found.with_size(size)
    return found


def write_preprocess(preprocess: Preprocess) -> dict[str, Any]:
    """preprocessor_config.json, for an image processor that every version of transformers has."""
    height, width = preprocess.size
    steps: dict[str, Any] = {
        "do_convert_rgb": True,
        "do_resize": True,
        "resample": int(FILTERS[preprocess.interpolation]),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
    if preprocess.resize == "squash":
        return {"image_processor_type": "ViTImageProcessor", "size": {"height": height, "width": width}, **steps}
    return {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": preprocess.shortest_edge or min(preprocess.size)},
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        **steps,
    }


def _find(folder: Path) -> tuple[Path, Mapping[str, Any] | None]:
    """The image processor's settings: a file of their own, or a part of processor_config.json."""
    path = folder / "preprocessor_config.json"
    if path.exists():
        return path, read_json(path)
    path = folder / "processor_config.json"
    inner = read_json(path).get("image_processor") if path.exists() else None
    return path, inner if isinstance(inner, Mapping) else None


def _parse(data: Mapping[str, Any], default: Preprocess, where: str, assumed: list[str]) -> Preprocess:
    processor = str(data.get("image_processor_type") or data.get("feature_extractor_type") or "")
    edge, size = _size(data.get("size"), processor.startswith(BY_SHORTEST_EDGE), default, where)
    crop = _size(data.get("crop_size"), False, default, where)[1] if data.get("do_center_crop") else None
    if processor.startswith("ConvNext") and edge is not None:
        edge, size, crop = _convnext(data, edge, where)
    if edge is None and crop is not None and crop != size:
        # DeiT's: transformers squashes to 256 x 256 before it crops, the authors keep the aspect
        edge = min(size)
        assumed.append(f"{where}: resizes to {_by(size)} px whatever the aspect, then crops; here the aspect is kept.")
    if data.get("do_resize") is False:
        assumed.append(f"{where}: do_resize is false; pictures are resized to what the model takes all the same.")
    target = size if crop is None else crop
    resample = data.get("resample")
    if resample is not None and (not isinstance(resample, int) or resample not in RESAMPLE):
        raise CheckpointError(f"{where}: resample {resample!r} is none of {', '.join(map(str, RESAMPLE))}.")
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if data.get("do_normalize", True):
        mean = _colors(data, "image_mean", default.mean, where)
        std = _colors(data, "image_std", default.std, where)
    rescale = data.get("rescale_factor", 1 / 255) if data.get("do_rescale", True) else 1
    if not isinstance(rescale, int | float) or not 0 < rescale < 1e6:
        raise CheckpointError(f"{where}: 'rescale_factor' must be a positive number, not {rescale!r}.")
    factor = 255 * rescale
    if not math.isclose(factor, 1, rel_tol=1e-6):  # (x r - mean) / std, as (x / 255 - mean / f) / (std / f)
        mean = (mean[0] / factor, mean[1] / factor, mean[2] / factor)
        std = (std[0] / factor, std[1] / factor, std[2] / factor)
    return Preprocess(
        size=target,
        resize="squash" if edge is None else "shortest",
        shortest_edge=None if edge is None or edge == min(target) else edge,
        interpolation=default.interpolation if resample is None else RESAMPLE[resample],
        mean=mean,
        std=std,
    )


def _size(value: Any, shortest: bool, default: Preprocess, where: str) -> tuple[int | None, tuple[int, int]]:
    """(shorter edge, size) of a `size` or `crop_size`; the edge is None where both sides are given."""
    match value:
        case None:
            return (default.shortest_edge or min(default.size) if default.resize == "shortest" else None), default.size
        case int():
            return (value if shortest else None), (value, value)
        case {"shortest_edge": int(edge)}:
            return edge, (edge, edge)
        case {"height": int(height), "width": int(width)} | [int(height), int(width)]:
            return None, (height, width)
        case _:
            raise CheckpointError(f"{where}: a size of {value!r} is not one that vitlab knows.")


def _convnext(
    data: Mapping[str, Any], edge: int, where: str
) -> tuple[int | None, tuple[int, int], tuple[int, int] | None]:
    """ConvNeXT's and CvT's: below 384 px the middle part of a larger picture, from there on all of it, squashed."""
    part = data.get("crop_pct", 224 / 256)
    if not isinstance(part, int | float) or not 0 < part <= 1:
        raise CheckpointError(f"{where}: 'crop_pct' must be above 0 and at most 1, not {part!r}.")
    return (None, (edge, edge), None) if edge >= 384 else (int(edge / part), (edge, edge), (edge, edge))


def _colors(data: Mapping[str, Any], name: str, default: tuple[float, float, float], where: str) -> Any:
    """Three numbers, or one for all."""
    match data.get(name):
        case None:
            return default
        case int() | float() as one:
            return float(one), float(one), float(one)
        case [int() | float() as red, int() | float() as green, int() | float() as blue]:
            return float(red), float(green), float(blue)
        case other:
            raise CheckpointError(f"{where}: '{name}' must be three numbers, not {other!r}.")


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
