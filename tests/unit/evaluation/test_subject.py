import logging
from collections.abc import Sequence

import pytest
import torch

from tiny_vits import SIZES, random_vit
from vitlab.core.imagenet import imagenet_classes, imagenet_labels
from vitlab.core.preprocess import Preprocess
from vitlab.evaluation.contract import EvaluationError, Subject
from vitlab.evaluation.subject import for_classes, lent, model_fingerprint, subject_from, subject_of
from vitlab.models.create import empty_model
from vitlab.models.vit import ViTConfig

IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def classifier(labels: Sequence[str] | None, num: int) -> Subject:
    """Logits that are the class numbers themselves, so that a column tells where it came from."""
    return subject_from(
        lambda images: images.flatten(1),
        logits=lambda images: torch.arange(num).float().expand(len(images), -1),
        name="a model",
        preprocess=Preprocess(size=(8, 8)),
        labels=None if labels is None else tuple(labels),
    )


def columns(subject: Subject) -> list[int]:
    assert subject.logits is not None
    return [int(value) for value in subject.logits(IMAGES)[0]]


def test_a_model_gives_pooled_features_and_logits() -> None:
    model = random_vit(ViTConfig(**SIZES, num_classes=3))
    found = subject_of(model, name="tiny")
    with torch.no_grad():
        assert found.features(IMAGES).shape == (3, model.num_features)
        torch.testing.assert_close(model.head(found.features(IMAGES)), model(IMAGES))
        assert found.logits is not None
        torch.testing.assert_close(found.logits(IMAGES), model(IMAGES))
    assert not found.features(IMAGES).requires_grad


def test_a_model_without_a_head_has_no_logits() -> None:
    assert subject_of(random_vit(ViTConfig(**SIZES, num_classes=0)), name="tiny").logits is None


def test_a_lent_model_comes_back_to_its_device_and_mode() -> None:
    """From the device without memory to a CPU, as from there to a GPU."""
    model = empty_model(ViTConfig(**SIZES, num_classes=3)).train()
    with lent(model):
        model.to_empty(device="cpu")
        subject_of(model, name="tiny")
        assert not model.training
    assert model.training
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_the_fingerprint_follows_weights_configuration_and_precision() -> None:
    model = random_vit(ViTConfig(**SIZES, num_classes=3))
    first = model_fingerprint(model)
    assert model_fingerprint(random_vit(ViTConfig(**SIZES, num_classes=3))) == first
    prints = {
        first,
        model_fingerprint(model, "bf16"),
        model_fingerprint(random_vit(ViTConfig(**SIZES, num_classes=3), seed=1)),
        model_fingerprint(random_vit(ViTConfig(**SIZES, num_classes=3, gelu="exact"))),
    }
    with torch.no_grad():
        model.get_parameter("norm.bias")[0] += 1e-6
    assert len(prints | {model_fingerprint(model)}) == 5


def test_bf16_is_computed_in_bf16_and_given_as_float32() -> None:
    model = random_vit(ViTConfig(**SIZES, num_classes=3))
    exact, rough = subject_of(model, name="a"), subject_of(model, name="a", precision="bf16")
    assert rough.features(IMAGES).dtype == torch.float32
    assert not torch.equal(exact.features(IMAGES), rough.features(IMAGES))


@pytest.mark.parametrize(
    ("labels", "classes", "want"),
    [
        (["cat", "dog"], ["cat", "dog"], [0, 1]),
        (["dog", "Cat"], ["cat", "dog"], [1, 0]),
        (["a", "A", "b"], ["A", "b", "a"], [1, 2, 0]),  # as of written letters
        (["sea_lion", "dog", "owl"], ["owl", "Sea Lion"], [2, 0]),
    ],
)
def test_classes_are_matched_by_name(labels: list[str], classes: list[str], want: list[int]) -> None:
    found, how = for_classes(classifier(labels, len(labels)), classes)
    assert columns(found) == want
    assert how.startswith("by name")


def test_wordnet_ids_are_names_of_imagenets_classes() -> None:
    ids = [key for key, _ in imagenet_classes()]
    found, how = for_classes(classifier(imagenet_labels(), 1000), [ids[701], ids[3]])
    assert columns(found) == [701, 3]
    assert how == "by name, 2 of the model's 1000"
    worded = ["parachute (n03888257)", "tiger shark (n01491361)"]
    assert columns(for_classes(classifier(imagenet_labels(), 1000), worded)[0]) == [701, 3]
    earlier = ["n00000001", "n01491361", "n03888257"]  # a model of before, and an id that is none of the thousand
    assert columns(for_classes(classifier(earlier, 3), [*worded, "n00000001"])[0]) == [2, 1, 0]
    assert columns(for_classes(classifier(worded, 2), ["n01491361", "n03888257"])[0]) == [1, 0]


def test_equally_many_classes_of_other_names_are_matched_by_number(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vitlab"):
        found, how = for_classes(classifier(["a", "b"], 2), ["x", "y"])
    assert (columns(found), how) == ([0, 1], "by number")
    assert "matched by number" in caplog.text
    caplog.clear()
    assert for_classes(classifier(None, 2), ["x", "y"])[1] == "by number"
    assert not caplog.text


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (None, "a model tells 3 classes and the data has 2: "),
        (["a", "b", "c"], "tells 3 classes and the data has 2, among them 'y', which the model does not know"),
    ],
)
def test_classes_that_do_not_fit_are_one_sentence(labels: list[str] | None, sentence: str) -> None:
    with pytest.raises(EvaluationError, match=rf"{sentence}.*, or measure its features \(fewshot, linear, knn\)\.$"):
        for_classes(classifier(labels, 3), ["a", "y"])
    with pytest.raises(EvaluationError, match=rf"{sentence}.*fine-tune it on this data\.$"):
        for_classes(classifier(labels, 3), ["a", "y"], otherwise="")


def test_a_subject_without_a_classifier_is_one_sentence() -> None:
    plain = subject_from(lambda images: images.flatten(1), name="features", preprocess=Preprocess(size=(8, 8)))
    with pytest.raises(EvaluationError, match="features has no classifier"):
        for_classes(plain, ["a", "b"])
