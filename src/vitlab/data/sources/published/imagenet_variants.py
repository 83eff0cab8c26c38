"""New test images for ImageNet's classes: ImageNet-V2, -A, -R and -Sketch, as their authors publish them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitlab.core.errors import DataError
from vitlab.core.imagenet import WNID, imagenet_classes
from vitlab.data.contract import DataSet
from vitlab.data.sources.files import list_folders, list_images
from vitlab.data.sources.folder import ClassFolders, assemble, list_classes
from vitlab.data.sources.source import Published
from vitlab.data.sources.wording import few


@dataclass(frozen=True)
class Variant:
    """One set: class folders in a folder that is called as the set is, all of it to test on."""

    name: str
    folders: tuple[str, ...]  # what its folder may be called
    wnid_of: Callable[[str], str | None]  # the WordNet id that a class folder's name stands for

    def recognizes(self, path: Path) -> bool:
        return _plain(path.absolute().name) in map(_plain, self.folders) and path.is_dir() and self._has_classes(path)

    def read(self, path: Path) -> DataSet:
        found = {name: self.wnid_of(name) for name in list_folders(path)}
        listed = list_classes(path, "", (name for name, wnid in found.items() if wnid is not None)).classes
        wnids = [found[name] for name in listed]
        if twice := sorted({str(wnid) for wnid in wnids if wnids.count(wnid) > 1}):
            raise DataError(f"{path} has two folders of the class {few(twice)}: keep one of them.")
        others = [name for name, wnid in found.items() if wnid is None]
        loose = list_images(path, deep=False).names
        notes = [f"Left out, as no class of ImageNet: {few(others)}."] if others else []
        notes += [f"{len(loose):,} images outside of the class folders left out: {few(loose)}."] if loose else []
        part = ClassFolders("", {str(found[name]): listing for name, listing in listed.items()})
        return assemble(self.name, path, {"test": part}, notes)

    def _has_classes(self, path: Path) -> bool:
        names = list_folders(path)
        return bool(names) and all(self.wnid_of(name) is not None for name in names)


def _by_wnid(name: str) -> str | None:
    return name if WNID.fullmatch(name) else None


def _by_number(name: str) -> str | None:
    """Of '0' to '999', which a sort by text would put into another order."""
    thousand = imagenet_classes()
    return thousand[int(name)][0] if re.fullmatch(r"0|[1-9][0-9]{0,2}", name) else None


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _v2(name: str, sampled: str, *aliases: str) -> Published:
    folders = (f"imagenetv2-{sampled}-format-val", f"imagenetv2-{sampled}")
    variant = Variant(name, (*folders, name, *aliases), _by_number)
    page = "https://github.com/modestyachts/ImageNetV2"
    return Published(
        name,
        f"ImageNet-V2 ({sampled})",
        variant.recognizes,
        variant.read,
        folders,
        page,
        aliases=aliases,
        known_by_name=True,
        num_classes=1000,
    )


def _variant(name: str, kind: str, page: str, num_classes: int, *folders: str) -> Published:
    variant = Variant(name, (name, *folders), _by_wnid)
    return Published(
        name,
        kind,
        variant.recognizes,
        variant.read,
        (name, *folders),
        page,
        known_by_name=True,
        num_classes=num_classes,
    )


SOURCE = (
    _v2("imagenet-v2", "matched-frequency", "imagenetv2"),
    _v2("imagenet-v2-threshold", "threshold0.7", "imagenet-v2-threshold0.7"),
    _v2("imagenet-v2-top", "top-images", "imagenetv2-topimages", "imagenetv2-top-images"),
    _variant("imagenet-a", "ImageNet-A", "https://github.com/hendrycks/natural-adv-examples", 200),
    _variant("imagenet-r", "ImageNet-R", "https://github.com/hendrycks/imagenet-r", 200),
    _variant("imagenet-sketch", "ImageNet-Sketch", "https://github.com/HaohanWang/ImageNet-Sketch", 1000, "sketch"),
)
