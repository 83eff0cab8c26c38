"""Uploads through the hub's real client, in processes of their own, to a stand-in of its HTTP interface."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard

from hub_stand_in import READER, TOKEN, HubStandIn, standing_in
from tiny_vits import bits, random_vit
from vitlab.models.vit import ViT, ViTConfig
from vitlab.weights import push as pushing
from vitlab.weights.load import load, save
from vitlab.weights.push import PushError, native_folder, push

SCRIPT = """
import json, os, sys
from vitlab.core.errors import Error
from vitlab.weights.load import load
from vitlab.weights.push import push
from pathlib import Path

for line in sys.stdin:
    task = json.loads(line)
    os.environ["HF_TOKEN"] = task.pop("token", "TOKEN")
    try:
        if "load" in task:
            model = load(task["load"])
            total = sum(p.double().sum().item() for p in model.parameters())
            print(json.dumps([model.labels, total]))
        else:
            pushed = push(Path(task.pop("source")), task.pop("to"), **task)
            print(json.dumps([pushed.repository, pushed.url, pushed.commit, list(pushed.files)]))
    except Error as error:
        print(json.dumps(str(error)))
""".replace('TOKEN")', f'{TOKEN}")')


@pytest.fixture
def hub() -> Iterator[HubStandIn]:
    with standing_in() as server:
        yield server


def do(tasks: list[dict[str, Any]], hub: HubStandIn, home: Path) -> tuple[list[Any], str]:
    """What each task gave, in a process of their own: the client reads its settings when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    settings = {
        "HF_HOME": str(home),
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_DISABLE_XET": "1",  # its own protocol, to servers of its own
        "PYTHONPATH": str(Path(pushing.__file__).parents[2]),
    }
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input="\n".join(map(json.dumps, tasks)),
        env=kept | settings,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()], run.stderr


def tiny(seed: int = 0) -> ViT:
    config = ViTConfig(image_size=(16, 16), patch_size=8, width=16, depth=1, mlp_dim=24, heads=2, num_classes=3)
    return random_vit(config, seed=seed)


def a_run(folder: Path) -> Path:
    model = tiny()
    model.labels = ("cat", "dog", "mouse")
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps({"name": "short", "data": {"source": "/home/someone/pets"}}))
    (folder / "data.json").write_text(json.dumps({"name": "pets"}))
    (folder / "result.json").write_text(json.dumps({"test accuracy": 0.5, "test count": 4.0}))
    save(model, folder / "model")
    return folder


def test_what_is_pushed_is_loaded_again(hub: HubStandIn, tmp_path: Path) -> None:
    run = a_run(tmp_path / "a run")
    save(tiny(seed=1), tmp_path / "native")  # without names of classes
    source = "hf-hub:owner/pets"
    (first, loaded, second, again, _), printed = do(
        [
            {"source": str(run), "to": source, "license": "mit", "message": "the first"},
            {"load": source},
            {"source": str(tmp_path / "native"), "to": source},
            {"load": source},
            {"source": str(run), "to": "hf-hub:owner/card", "license": "mit"},
        ],
        hub,
        tmp_path / "home",
    )
    assert first[:2] == ["owner/pets", f"{hub.endpoint}/owner/pets"]
    settings = ["checksums.json", "config.json", "labels.json", "preprocess.json"]
    assert sorted(first[3]) == sorted(["README.md", "model.safetensors", *settings])
    assert loaded == [["cat", "dog", "mouse"], sum(value.double().sum().item() for value in tiny().parameters())]
    assert second[2] != first[2]
    assert again == [None, sum(value.double().sum().item() for value in tiny(seed=1).parameters())]
    assert printed == ""  # no progress bars, for this is no terminal

    repository = hub.repositories["owner/pets"]
    assert repository.messages == ["initial commit", "the first", "pets, by vitlab"]
    assert not repository.private
    assert "labels.json" not in repository.files  # the first model's
    assert repository.files["model.safetensors"] in hub.storage.values()
    written = tmp_path / "files"
    written.mkdir()
    for name, content in repository.files.items():
        (written / name).write_bytes(content)
    read = load(written)
    for name, value in bits(tiny(seed=1)).items():
        assert torch.equal(bits(read)[name], value), name

    text = hub.repositories["owner/card"].files["README.md"].decode()
    data = ModelCard(text).data.to_dict()
    assert data["license"] == "mit"
    assert data["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.5
    assert 'vitlab.load("hf-hub:owner/card")' in text
    assert "someone" not in text
    assert "license: unknown" in (run / "model" / "README.md").read_text()  # the folder stays as it was


def test_what_the_hub_refuses(hub: HubStandIn, tmp_path: Path) -> None:
    hub.broken = "owner/broken/commit/"
    run = str(a_run(tmp_path / "mine"))
    pets = {"source": run, "to": "hf-hub:owner/pets"}
    tasks = [
        pets,
        {"source": run, "to": "hf-hub:owner/secret", "private": True},
        {"source": run, "to": "hf-hub:others/pets"},
        pets | {"private": True},
        pets | {"token": ""},
        pets | {"token": "hf_wrong"},
        pets | {"token": READER},
        {"source": run, "to": "hf-hub:owner/broken"},
    ]
    (done, _, *refused), _ = do(tasks, hub, tmp_path / "home")
    assert done[0] == "owner/pets"
    assert hub.repositories["owner/secret"].private
    says = [
        "Your token may not write to others/pets",
        "owner/pets is there already, and public",
        "log in with `hf auth login`, or set HF_TOKEN",
        "does not accept your token",
        "Your token may not write to owner/pets",
        "HTTP status 500: the stand-in was told to break",
    ]
    for words, sentence in zip(says, refused, strict=True):
        assert words in sentence
        assert "\n" not in sentence
    assert hub.repositories["owner/pets"].messages == ["initial commit", "mine, by vitlab"]
    assert hub.repositories["owner/broken"].files == {}


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    closed = HubStandIn()
    closed.server_close()
    run = str(a_run(tmp_path / "mine"))
    (answer,), _ = do([{"source": run, "to": "hf-hub:owner/pets"}], closed, tmp_path / "home")
    assert answer.startswith("owner/pets cannot be uploaded (")
    assert "\n" not in answer


def test_offline(tmp_path: Path) -> None:
    with pytest.raises(PushError, match=r"HF_HUB_OFFLINE is set.*unset it"):
        push(a_run(tmp_path / "mine"), "hf-hub:owner/pets")


@pytest.mark.parametrize(
    "name", ["owner/pets", "hf-hub:pets", "hf-hub:a/b/c", "hf-hub:owner/pe ts", "hf-hub:", "hf-hub:../x"]
)
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(PushError, match="write hf-hub:owner/name"):
        push(a_run(tmp_path / "mine"), name)


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(PushError, match="is no folder"):
        native_folder(tmp_path / "gone")
    (tmp_path / "run").mkdir()
    with pytest.raises(PushError, match=r"holds no model\.$"):
        native_folder(tmp_path / "run")
    (tmp_path / "run" / "recipe.json").write_text("{}")
    with pytest.raises(PushError, match="The run has no model yet"):
        native_folder(tmp_path / "run")
    (tmp_path / "run" / "model").mkdir()
    (tmp_path / "run" / "model" / "config.json").write_text('{"architecture": "vit_base_patch16_224"}')
    with pytest.raises(PushError, match="not of the native format: `vitlab convert"):
        native_folder(tmp_path / "run")
    (tmp_path / "run" / "model" / "config.json").write_text('{"format": "vitlab"}')
    with pytest.raises(PushError, match=r"model\.safetensors is missing"):
        native_folder(tmp_path / "run")
