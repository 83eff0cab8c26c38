import pytest
import torch

from vitlab.core.devices import choose_device
from vitlab.core.errors import ConfigError


def test_none_is_a_gpu_where_there_is_one() -> None:
    assert choose_device() == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["tpu", "foo", "", "meta", "cuda:99", "cuda:-1"])
def test_what_no_machine_has(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^This machine has no device '{name}': choose cpu"):
        choose_device(name)


def test_a_gpu_is_refused_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    with pytest.raises(ConfigError, match=r"^This machine has no device 'cuda': choose cpu\.$"):
        choose_device("cuda")


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert [choose_device(name) for name in ("cuda", "cuda:1", "cpu")] == ["cuda", "cuda:1", "cpu"]
    with pytest.raises(ConfigError, match="choose cpu or cuda"):
        choose_device("cuda:2")
