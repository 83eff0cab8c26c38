# ruff: noqa: ARG002  a task takes what it does not need
"""A service of models that are no classifiers: masks, and numbers of a task of one's own."""

import base64
import io
import json
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitlab.data.contract import DataSet, Split
from vitlab.models.contract import Model
from vitlab.objectives.contract import Criterion
from vitlab.tasks import TASKS
from vitlab.tasks.contract import Answer, Scorer, Task, TaskKind
from web.conftest import LIMITS
from web.hostile import picture, saved
from web.live import LABELS, Live, error_code, serving, small_model

pytestmark = pytest.mark.web
RAW = saved(picture(), "PNG")


@dataclass(frozen=True)
class NoOptions:
    """None."""


class Heights(Task):
    def __init__(self, options: NoOptions) -> None: ...

    def check(self, dataset: DataSet) -> None: ...

    def fields(self, dataset: DataSet) -> dict[str, Any]:
        return {"num_classes": 2}

    def criterion(self, loss: Any, dataset: DataSet, train: Split) -> Criterion:
        raise AssertionError("nothing is trained here")

    def scorer(self, loss: Any, dataset: DataSet) -> Scorer:
        raise AssertionError("nothing is scored here")

    def words(self, scores: Any) -> str:
        return ""

    def answers(self, model: Model, outputs: Tensor, top: int) -> list[Answer]:
        return [Answer(numbers=dict(zip(("height", "width"), row, strict=True))) for row in outputs.tolist()]


HEIGHTS = TaskKind(name="heights", summary="how high and wide", build=Heights, options=NoOptions)


def outputs(model: Model) -> np.ndarray:
    """The model's own, by another way to its input."""
    height, width = model.preprocess.size
    small = Image.open(io.BytesIO(RAW)).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    images = torch.tensor((np.asarray(small, dtype=np.float64) - 127.5) / 127.5, dtype=torch.float32)
    with torch.no_grad():
        return model(images.permute(2, 0, 1)[None])[0].numpy()


def checked(live: Live) -> Any:
    """The answer to the picture, which fits the document's schema."""
    response, document = live.post("/v1/predict", RAW), live.get("/openapi.json").json()
    assert response.status_code == 200
    (described,) = document["paths"]["/v1/predict"]["post"]["responses"]["200"]["content"].values()
    validator = jsonschema_rs.Draft202012Validator({**described["schema"], "components": document["components"]})
    answer = json.loads(response.content)
    validator.validate(answer)
    assert not validator.is_valid({"predictions": [{"classes": []}]})  # what this model does not say
    model = jsonschema_rs.Draft202012Validator(
        {"$ref": "#/components/schemas/Model", "components": document["components"]}
    )
    model.validate(live.get("/v1/model").json())
    (found,) = answer["predictions"]
    return found


def test_a_segmentation_gives_a_mask_and_its_shares() -> None:
    model = small_model(head="patches")
    model.task = "segmentation"
    with serving(model, LIMITS) as live:
        found = checked(live)
        assert live.get("/v1/model").json()["answers"] == "mask"
        assert live.get("/v1/model").json()["reads"] == "patches"
        assert error_code(live.post("/v1/predict", b"no image")) == "unsupported_image"
        assert live.post("/v1/attention", RAW).status_code == 200
    expected = outputs(model).argmax(axis=0)
    mask = Image.open(io.BytesIO(base64.b64decode(found["mask"])))
    assert mask.mode == "P"
    assert np.array_equal(np.asarray(mask), expected)
    shares = {name: float((expected == k).mean()) for k, name in enumerate(LABELS)}
    assert found["shares"] == pytest.approx({name: share for name, share in shares.items() if share})


def test_a_task_of_ones_own_gives_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TASKS, "_own", {kind.name: kind for kind in (*TASKS, HEIGHTS)})
    model = small_model(num_classes=2)
    model.task = "heights"
    with serving(model, LIMITS) as live:
        found = checked(live)
        assert live.get("/v1/model").json()["answers"] == "numbers"
    assert found["numbers"] == pytest.approx(
        dict(zip(("height", "width"), outputs(model).tolist(), strict=True)), rel=1e-4
    )
