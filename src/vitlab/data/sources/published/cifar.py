"""CIFAR-10 and CIFAR-100 as their authors publish them, the Python and the binary version."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import Array, DataSet
from vitlab.data.sources.labels import read_lines
from vitlab.data.sources.pixels import Pixels
from vitlab.data.sources.published.pickles import read_pickle
from vitlab.data.sources.source import Published, make

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """The names of one set's files."""

    name: str
    train: tuple[str, ...]
    test: str
    meta: str  # Python
    names: str  # the key of the class names in it
    labels: str
    names_file: str  # binary
    label_bytes: int  # before each binary picture; the last of them counts

    def recognizes(self, path: Path) -> bool:
        return self._named(path) and any(
            (path / f"{name}{end}").is_file() for name in self._all for end in ("", ".bin")
        )

    def read(self, path: Path) -> DataSet:
        binary = any((path / f"{name}.bin").is_file() for name in self._all)
        parts: dict[str, tuple[Pixels, Array]] = {}
        notes: list[str] = []
        for split, files in (("train", self.train), ("test", (self.test,))):
            here = [path / (f"{name}.bin" if binary else name) for name in files]
            missing = [file.name for file in here if not file.is_file()]
            if len(missing) == len(here):
                notes.append(f"There is no {split} part: {missing[0]} is missing.")
                continue
            if missing:
                raise DataError(f"{path} is not complete: {', '.join(missing)} is missing.")
            read = [self._binary(file) if binary else self._python(file) for file in here]
            values = np.concatenate([pixels for pixels, _ in read]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            labels = np.concatenate([labels for _, labels in read]).astype(np.int64)
            parts[split] = Pixels(np.ascontiguousarray(values), f"{path} ({split})"), labels
        classes = self._classes(path, binary)
        most = max(int(labels.max(initial=0)) for _, labels in parts.values())
        if classes is None or most >= len(classes):
            notes.append("The file with the class names is missing or short: classes are called by their numbers.")
            classes = [str(number) for number in range(most + 1)]
        return make(self.name, classes, parts, notes=notes)

    @property
    def _all(self) -> tuple[str, ...]:
        return (*self.train, self.test)

    def _named(self, path: Path) -> bool:
        """Files called `train` and `test` say little: the folder or a file of class names has to tell."""
        names = any((path / name).is_file() for name in (self.meta, self.names_file))
        return len(self.train) > 1 or names or path.name.lower().startswith("cifar")

    def _python(self, file: Path) -> tuple[Array, Array]:
        content = read_pickle(file)
        pixels, labels = content.get("data"), content.get(self.labels)
        if not isinstance(pixels, np.ndarray) or labels is None:
            raise DataError(f"{file} holds {', '.join(content)}; expected were data and {self.labels}.")
        if not isinstance(labels, list | np.ndarray) or not all(_is_label(label) for label in labels):
            raise DataError(f"{file} is damaged: its {self.labels} are not a list of whole numbers from 0 to 255.")
        labels = np.array(labels, np.int64)
        if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS):
            raise DataError(f"{file} is damaged: {list(pixels.shape)} pixels for {len(labels)} labels.")
        return pixels, labels

    def _binary(self, file: Path) -> tuple[Array, Array]:
        values = np.fromfile(file, np.uint8)
        length = self.label_bytes + PIXELS
        if not len(values) or len(values) % length:
            raise DataError(f"{file} is damaged: {len(values):,} bytes are not a multiple of {length:,}.")
        rows = values.reshape(-1, length)
        return rows[:, self.label_bytes :], rows[:, self.label_bytes - 1]

    def _classes(self, path: Path, binary: bool) -> list[str] | None:
        if binary:
            return read_lines(path / self.names_file) if (path / self.names_file).is_file() else None
        if not (path / self.meta).is_file():
            return None
        names = read_pickle(path / self.meta).get(self.names, [])
        if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
            raise DataError(f"{path / self.meta} is damaged: its {self.names} are not a list of names.")
        return [name.decode(errors="replace") if isinstance(name, bytes) else name for name in names]


def _is_label(value: object) -> bool:
    return isinstance(value, int | np.integer) and 0 <= int(value) < 256


PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
# CIFAR-100's 20 coarse classes, as the page has them
COARSE: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}

CIFAR10 = Layout(
    name="cifar10",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    names="label_names",
    labels="labels",
    names_file="batches.meta.txt",
    label_bytes=1,
)
CIFAR100 = Layout(
    name="cifar100",
    train=("train",),
    test="test",
    meta="meta",
    names="fine_label_names",
    labels="fine_labels",
    names_file="fine_label_names.txt",
    label_bytes=2,
)
# the archives' folders, and those that Keras 3 unpacks them into
FOLDERS10 = ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar-10-batches-py-target/cifar-10-batches-py")
FOLDERS100 = ("cifar-100-python", "cifar-100-binary", "cifar-100-python-target/cifar-100-python")
SOURCE = (
    Published("cifar10", "CIFAR-10", CIFAR10.recognizes, CIFAR10.read, FOLDERS10, PAGE, num_classes=10),
    Published("cifar100", "CIFAR-100", CIFAR100.recognizes, CIFAR100.read, FOLDERS100, PAGE, num_classes=100),
)
