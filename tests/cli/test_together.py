"""What several processes would say: here two by turns, as torchrun's store sees them."""

import pytest
from torch.distributed import TCPStore

from vitlab.cli import main
from vitlab.cli.together import _store, first_to_say


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    """A launcher's, and its environment."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    _store.cache_clear()
    values = {"USE_AGENT_STORE": "True", "RESTART_COUNT": "0"}
    for name, value in values.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    return store


@pytest.mark.usefixtures("store")
def test_a_sentence_is_said_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for _ in range(2):
        assert main(["no-such-verb"]) == 2
        said.append(capsys.readouterr().err)
    assert said[0].startswith("vitlab: There is no verb 'no-such-verb'.")
    assert said[1] == ""
    assert first_to_say("something else")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert main(["no-such-verb"]) == 2
    assert capsys.readouterr().err == said[0]


def test_a_process_alone_repeats_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["no-such-verb"]) == 2
        assert "There is no verb" in capsys.readouterr().err


def test_without_its_launcher_a_process_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    _store.cache_clear()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert first_to_say("a")
    assert first_to_say("a")
