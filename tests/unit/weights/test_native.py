"""The native folder: a round trip to the bit, writes that are whole or not at all, and what is refused."""

import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from damaging import flipped
from tiny_vits import bits, random_vit, vit_configs
from vitlab.core.errors import CannotHoldError, CheckpointError, ConfigError, Error
from vitlab.core.preprocess import Preprocess
from vitlab.models.vit import ViTConfig
from vitlab.weights import native
from vitlab.weights.load import load, save
from vitlab.weights.native import StoredType

TINY = ViTConfig(image_size=(16, 16), patch_size=8, width=16, depth=1, mlp_dim=24, heads=2, num_classes=3)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@given(config=vit_configs(), seed=st.integers(0, 2**31), named=st.booleans(), edge=st.sampled_from([None, 12, 15]))
def test_round_trip_is_exact_to_the_bit(config: ViTConfig, seed: int, named: bool, edge: int | None) -> None:
    """Weights, configuration with every field, preprocessing and labels."""
    preprocess = Preprocess(
        size=config.image_size,
        resize="shortest",
        shortest_edge=edge,
        interpolation="lanczos",
        mean=(0.1, 1 / 3, 0.7),
        std=(0.2, 0.3, 1e-3),
    )
    before = random_vit(config, seed=seed, preprocess=preprocess)
    before.labels = (
        tuple(f"Straße „{i}“\n" for i in range(config.num_classes)) if named and config.num_classes else None
    )
    with tempfile.TemporaryDirectory() as folder:
        save(before, Path(folder) / "model")
        after = load(Path(folder) / "model")
    assert after.config == config
    assert after.preprocess == preprocess
    assert after.labels == before.labels
    assert after.load_report.lines() == []
    assert after.state_dict().keys() == before.state_dict().keys()
    for name, value in bits(before).items():
        assert torch.equal(bits(after)[name], value), name
    assert not after.training


def test_extreme_values_survive(tmp_path: Path) -> None:
    before = random_vit(TINY)
    with torch.no_grad():
        before.projection.weight[0, :4] = torch.tensor([1e-45, -0.0, torch.finfo(torch.float32).max, 1e-38])
    save(before, tmp_path / "model")
    assert torch.equal(bits(load(tmp_path / "model"))["projection.weight"], bits(before)["projection.weight"])


def test_the_files_are_those_of_the_design(tmp_path: Path) -> None:
    before = random_vit(TINY)
    before.labels = ("cat", "dog", "mouse")
    save(before, tmp_path / "model")
    assert sorted(contents(tmp_path / "model")) == [
        "README.md",
        "checksums.json",
        "config.json",
        "labels.json",
        "model.safetensors",
        "preprocess.json",
    ]
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (settings["format"], settings["version"], settings["family"]) == ("vitlab", 1, "vit")
    assert settings["config"]["image_size"] == [16, 16]
    assert load_file(tmp_path / "model" / "model.safetensors").keys() == before.state_dict().keys()


def test_a_failing_write_leaves_the_old_folder_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"
    save(random_vit(TINY), target)
    before = contents(target)

    def fail(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        del tensors, metadata
        path.write_bytes(b"half of it")
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(native, "save_file", fail)
        for path in (target, tmp_path / "another"):
            with pytest.raises(OSError, match="no space"):
                save(random_vit(TINY, seed=1), path)
    assert contents(target) == before
    assert [item.name for item in tmp_path.iterdir()] == ["model"]
    save(random_vit(TINY, seed=1), target)
    assert torch.equal(bits(load(target))["head.weight"], bits(random_vit(TINY, seed=1))["head.weight"])
    assert [item.name for item in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("kind", ["photos", "strangers_config", "more_than_a_model", "file"])
def test_what_is_not_a_model_is_not_overwritten(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if kind == "file":
        target.write_text("mine")
        with pytest.raises(Error, match="is a file"):
            save(random_vit(TINY), target)
        assert target.read_text() == "mine"
        return
    target.mkdir()
    if kind == "photos":
        (target / "holiday.jpg").write_text("sea")
    elif kind == "strangers_config":
        (target / "config.json").write_text('{"architecture": "vit_base_patch16_224"}')
    else:
        save(random_vit(TINY), target)
        (target / "notes.txt").write_text("years of work")
    before = contents(target)
    with pytest.raises(Error, match="it is left as it is"):
        save(random_vit(TINY), target)
    assert contents(target) == before
    assert [item.name for item in tmp_path.iterdir()] == ["target"]


def test_what_a_killed_write_of_the_card_left_is_replaced_with_the_folder(tmp_path: Path) -> None:
    save(random_vit(TINY), tmp_path / "model")
    (tmp_path / "model" / ".README.md.kr2unzyk.partial.md").write_text("half a ca")
    save(random_vit(TINY, seed=1), tmp_path / "model")
    assert not [item.name for item in (tmp_path / "model").iterdir() if item.name.startswith(".")]
    (tmp_path / "model" / ".README.md.mine.partial.md").write_text("a name that no write gives")
    with pytest.raises(Error, match="it is left as it is"):
        save(random_vit(TINY), tmp_path / "model")


def test_an_empty_folder_and_missing_parents_are_fine(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    save(random_vit(TINY), tmp_path / "empty")
    save(random_vit(TINY), tmp_path / "a" / "b" / "model")
    assert load(tmp_path / "empty").config == load(tmp_path / "a" / "b" / "model").config == TINY


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    before = random_vit(TINY)
    before.labels = ("cat", "dog", "mouse")
    save(before, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "version 2 of the native format is newer"),
        ({"version": "one"}, "version 'one'"),
        ({"family": None}, "'family' or 'config' is missing"),
        ({"family": "vitt"}, "no model family named 'vitt'.*Did you mean vit"),
        ({"config": {"widht": 16}}, "there is no field 'widht'.*Did you mean width"),
        ({"config": {"width": "16"}}, "width must be a whole number"),
        ({"config": {"width": 16, "heads": 3}}, "not divisible by the 3 heads"),
        ({"config": {"positions": "sinus"}}, "positions must be"),
    ],
)
def test_settings_that_cannot_be(saved: Path, changes: dict[str, Any], says: str) -> None:
    edit(saved / "config.json", **changes)
    with pytest.raises(Error, match=says) as caught:
        load(saved)
    assert "\n" not in str(caught.value)


def test_labels_that_do_not_fit(saved: Path) -> None:
    edit(saved / "labels.json", labels=["cat", "dog"])
    with pytest.raises(CheckpointError, match="2 class names for 3 classes"):
        load(saved)
    assert load(saved, num_classes=0).labels is None
    edit(saved / "labels.json", labels=["cat", 2, "mouse"])
    with pytest.raises(CheckpointError, match=r"labels.json.*must be a list of texts"):
        load(saved)


def test_preprocessing_that_cannot_be(saved: Path) -> None:
    edit(saved / "preprocess.json", std=[0, 1, 1])
    with pytest.raises(ConfigError, match="std positive"):
        load(saved)
    edit(saved / "preprocess.json", std=[1, 1, 1], gamma=2.2)
    with pytest.raises(ConfigError, match=r"preprocess.json: there is no field 'gamma'"):
        load(saved)
    (saved / "preprocess.json").unlink()
    with pytest.raises(CheckpointError, match=r"There is no file .*preprocess\.json"):
        load(saved)


def test_preprocessing_follows_the_image_size(saved: Path) -> None:
    edit(saved / "preprocess.json", resize="shortest", shortest_edge=20)
    assert load(saved).preprocess == replace(Preprocess(), size=(16, 16), resize="shortest", shortest_edge=20)
    larger = load(saved, image_size=32).preprocess
    assert (larger.size, larger.shortest_edge) == ((32, 32), 40)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(saved: Path, value: float) -> None:
    tensors = load_file(saved / "model.safetensors")
    tensors["blocks.0.mlp.up.weight"][3, 2] = value
    (saved / "checksums.json").unlink()
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'blocks.0.mlp.up.weight' holds values that are not finite"):
        load(saved)


def test_tensors_missing_misshapen_and_left_over(saved: Path) -> None:
    (saved / "checksums.json").unlink()
    tensors = load_file(saved / "model.safetensors")
    save_file({name: value for name, value in tensors.items() if name != "norm.bias"}, saved / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'norm.bias' is missing"):
        load(saved)
    save_file(tensors | {"norm.bias": torch.zeros(15)}, saved / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'norm.bias' has the shape \[15\] where the model needs \[16\]"):
        load(saved)
    save_file(tensors | {"ema.decay": torch.zeros(1)}, saved / "model.safetensors")
    assert load(saved).load_report.unused == ["ema.decay"]


def test_a_flipped_bit_of_the_weights_is_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(30):
        path.write_bytes(flipped(whole, rng))
        with pytest.raises(CheckpointError, match=r"model\.safetensors: ") as caught:
            load(saved)
        assert "\n" not in str(caught.value)
    path.write_bytes(whole)
    assert load(saved).load_report.lines() == []


def test_a_flipped_bit_of_a_number_names_the_checksum(saved: Path) -> None:
    """One that nothing else would notice: of the last weight, to another finite number."""
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + bytes([whole[-4] ^ 1]) + whole[-3:])
    with pytest.raises(CheckpointError, match=r"its checksum is not that in .*or delete checksums\.json"):
        load(saved)
    (saved / "checksums.json").unlink()  # as in a folder from before
    assert load(saved).load_report.lines() == []


@pytest.mark.parametrize("name", ["config.json", "preprocess.json", "labels.json"])
def test_settings_that_somebody_edited_are_a_warning(saved: Path, name: str) -> None:
    (saved / name).write_text((saved / name).read_text().replace("\n", "\n\n"))
    [line] = load(saved).load_report.lines()
    assert f"{name} was changed after it was saved" in line


@pytest.mark.parametrize("name", ["config.json", "preprocess.json", "labels.json"])
def test_a_flipped_bit_of_settings_is_noticed(saved: Path, name: str) -> None:
    path = saved / name
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(30):
        path.write_bytes(flipped(whole, rng))
        try:
            assert f"{name} was changed" in "".join(load(saved).load_report.lines())
        except Error as error:
            assert "\n" not in str(error)  # noqa: PT017 (either is well)


def test_an_edited_card_is_none_of_loadings_business(saved: Path) -> None:
    (saved / "README.md").write_text("A card of my own.")
    assert load(saved).load_report.lines() == []


def test_truncated_weights(saved: Path) -> None:
    whole = (saved / "model.safetensors").read_bytes()
    for length in (0, 5, len(whole) // 2, len(whole) - 1):
        (saved / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model.safetensors"):
            load(saved)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_in_half_load_as_float32(dtype: StoredType, tmp_path: Path) -> None:
    before = random_vit(TINY)
    save(before, tmp_path / "model", dtype=dtype)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {getattr(torch, dtype)}
    after = load(tmp_path / "model")
    for name, value in before.state_dict().items():
        assert after.state_dict()[name].dtype == torch.float32
        torch.testing.assert_close(after.state_dict()[name], value, rtol=2**-8, atol=2**-24)
    assert {value.dtype for value in before.state_dict().values()} == {torch.float32}  # what is in memory stays


def test_weights_that_half_cannot_hold_are_refused(tmp_path: Path) -> None:
    model = random_vit(TINY)
    with torch.no_grad():
        model.projection.weight[0, 0] = 1e5
    with pytest.raises(CannotHoldError, match=r"'projection.weight' has values that float16 cannot hold"):
        save(model, tmp_path / "model", dtype="float16")
    assert not (tmp_path / "model").exists()
    save(model, tmp_path / "model", dtype="bfloat16")


def test_a_licence_stays_with_the_weights(tmp_path: Path) -> None:
    """Also where a folder of texts waited for its model, and where what is saved does not know of it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "LICENSE").write_text("Terms.\n")
    (folder / "README.md").write_text("My card.")
    for _ in range(2):
        save(random_vit(TINY), folder)
        assert (folder / "LICENSE").read_text() == "Terms.\n"
        assert (folder / "README.md").read_text() == "My card."
    model = load(folder, num_classes=2)
    assert model.license == "Terms.\n"
    save(model, tmp_path / "other")
    assert (tmp_path / "other" / "LICENSE").read_text() == "Terms.\n"
    (folder / "LICENSE").write_bytes(b"x" * (2 << 20))
    with pytest.raises(CheckpointError, match="no licence is so long"):
        load(folder)
