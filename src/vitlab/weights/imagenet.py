"""The thousand classes of ImageNet, in the order of every public checkpoint: WordNet identifiers and their lemmas."""

from importlib.resources import files


def imagenet_classes() -> list[tuple[str, str]]:
    """(WordNet identifier, lemmas) a class; a lemma alone is not unique ('crane' is a bird and a machine)."""
    text = (files("vitlab.weights") / "imagenet.tsv").read_text(encoding="utf-8")
    return [(key, name) for key, _, name in (line.partition("\t") for line in text.splitlines())]


def imagenet_labels() -> tuple[str, ...]:
    return tuple(name for _, name in imagenet_classes())
