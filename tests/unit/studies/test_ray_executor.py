"""Cells on Ray: what is sent and sent again, by a stand-in of Ray; and on a real cluster of several raylets here, of
which a worker and a node are killed."""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitlab.core.errors import ConfigError, MissingDependencyError, UnknownNameError
from vitlab.studies import ray_executor
from vitlab.studies.contract import StudyError
from vitlab.studies.executors import Here, find_executor
from vitlab.studies.grid import GridStopped
from vitlab.studies.ray_executor import Placement, Ray, parse_ray


@dataclass(frozen=True)
class Cell:
    """As much of a cell as an executor looks at."""

    name: str
    folder: str
    device: str | None = None

    @property
    def is_done(self) -> bool:
        return Path(self.folder, "result").exists()


def cells(root: Path, *names: str) -> Any:
    return [Cell(name, str(root / "runs" / name)) for name in names]


# The text that names it.


@pytest.mark.parametrize(
    ("text", "address", "placement"),
    [
        ("ray", None, Placement()),
        ("ray://head:10001", "ray://head:10001", Placement()),
        ("ray,gpus=0.5,cpus=2,retries=7", None, Placement(gpus=0.5, cpus=2, retries=7)),
        ("ray://10.0.0.1:10001,gpus=0", "ray://10.0.0.1:10001", Placement(gpus=0)),
    ],
)
def test_its_names(text: str, address: str | None, placement: Placement) -> None:
    found = find_executor(text)
    assert isinstance(found, Ray)
    assert (found.address, found.placement) == (address, placement)
    assert isinstance(find_executor("here"), Here)


@pytest.mark.parametrize(
    "text", ["ray,gpu=1", "ray,gpus=x", "ray,retries=1.5", "ray://host", "ray:1", "ray,gpus=1,gpus=2"]
)
def test_what_is_no_name_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="is no executor") as raised:
        parse_ray(text)
    assert "\n" not in str(raised.value)


def test_other_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean here"):
        find_executor("her")
    with pytest.raises(UnknownNameError, match="There are here, ray or ray://HOST:PORT"):
        find_executor("slurm")


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vitlab\[cluster\]'"):
        list(Ray(work=work).map(cells(tmp_path, "a")))


# A stand-in of Ray: tasks run when they are waited for, and those named are lost first.


class Lost(Exception):  # noqa: N818  as Ray calls them
    pass


class StandIn:
    """As much of Ray as is used, in this process."""

    def __init__(self, lost: dict[str, list[type[Exception]]] | None = None, **resources: float) -> None:
        kinds = ("WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "OutOfMemoryError")
        more = ("TaskCancelledError", "ObjectLostError")
        self.exceptions = SimpleNamespace(RayError=Lost)
        for name in (*kinds, *more):
            setattr(self.exceptions, name, type(name, (Lost,), {}))
        self.losses = {name: list(each) for name, each in (lost or {}).items()}
        self.resources = resources or {"CPU": 4.0}
        self.placed: dict[str, Any] = {}
        self.begun: list[str] = []
        self.cancelled: list[str] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": self.resources}, {"Alive": False, "Resources": {"GPU": 99.0}}]

    def remote(self, **placed: Any) -> Callable[..., Any]:
        self.placed = placed

        def decorated(function: Callable[..., Any]) -> Any:
            def options(name: str) -> Any:
                def start(*arguments: Any) -> Any:
                    self.begun.append(name)
                    return SimpleNamespace(name=name, call=lambda: function(*arguments))

                return SimpleNamespace(remote=lambda *arguments: Reference(start(*arguments)))

            return SimpleNamespace(options=options)

        return decorated

    def wait(self, references: list[Any], num_returns: int = 1, timeout: float | None = None) -> tuple[list[Any], Any]:
        del timeout
        return references[-num_returns:], references[:-num_returns]  # the last first: in any order

    def get(self, reference: Any) -> Any:
        if self.losses.get(reference.task.name):
            raise self.losses[reference.task.name].pop()("it is gone")
        return reference.task.call()

    def cancel(self, reference: Any, *, force: bool) -> None:
        assert not force  # which would lose what was not yet in a checkpoint
        self.cancelled.append(reference.task.name)


@dataclass(frozen=True, eq=False)
class Reference:
    task: Any


def work(cell: Any) -> Mapping[str, Any]:
    return {"run": {"name": cell.name}, "measures": {}}


def mapped(
    stand_in: StandIn, given: Any, monkeypatch: pytest.MonkeyPatch, placement: Placement | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Outcomes by name, and what was said."""
    said: list[str] = []
    monkeypatch.setattr(ray_executor, "connect", lambda _: stand_in)
    outcomes = [(cell.name, outcome) for cell, outcome in Ray(None, placement, work=work, say=said.append).map(given)]
    assert len({name for name, _ in outcomes}) == len(outcomes) == len(given)  # each once
    return dict(outcomes), said


def test_each_outcome_once_and_done_ones_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    given = cells(tmp_path, "a", "b", "c")
    Path(given[1].folder).mkdir(parents=True)
    Path(given[1].folder, "result").touch()
    found, said = mapped(stand_in, given, monkeypatch)
    assert found == {name: work(SimpleNamespace(name=name)) for name in "abc"}
    assert stand_in.begun == ["a", "c"]
    assert said == ["Ray: 1 node with 4 cores and 0 GPUs; each run has 1 core."]


def test_what_is_lost_begins_again_until_it_is_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    errors = stand_in.exceptions
    stand_in.losses = {
        "worker": [errors.WorkerCrashedError],
        "node": [errors.NodeDiedError, errors.OutOfMemoryError],
        "ever": [errors.NodeDiedError] * 9,
    }
    found, said = mapped(stand_in, cells(tmp_path, "worker", "node", "ever", "well"), monkeypatch, Placement(retries=2))
    assert [stand_in.begun.count(name) for name in ("worker", "node", "ever", "well")] == [2, 3, 3, 1]
    assert found["ever"] == {"error": "its node was lost, 3 times: the same command resumes it"}
    assert found["worker"]["run"] == {"name": "worker"}
    assert "worker: its worker was lost; it resumes elsewhere (1 of 2)." in said
    assert "node: its node ran out of memory; it resumes elsewhere (1 of 2)." in said


def test_an_error_of_rays_is_the_cells_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = mapped(StandIn({"bad": [Lost]}), cells(tmp_path, "bad", "good"), monkeypatch)
    assert found["bad"] == {"error": "Ray: it is gone"}
    assert "run" in found["good"]


@pytest.mark.parametrize(
    ("resources", "asked", "device", "placed"),
    [
        ({"CPU": 64.0, "GPU": 8.0}, Placement(), None, (1, 8)),
        ({"CPU": 64.0, "GPU": 8.0}, Placement(gpus=0.25), None, (0.25, 2)),
        ({"CPU": 64.0, "GPU": 8.0}, Placement(), "cpu", (0, 1)),
        ({"CPU": 2.0, "GPU": 4.0}, Placement(), None, (1, 1)),
        ({"CPU": 6.0}, Placement(cpus=3), None, (0, 3)),
    ],
)
def test_where_runs_are_placed(
    resources: dict[str, float],
    asked: Placement,
    device: str | None,
    placed: tuple[float, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in = StandIn(None, **resources)
    given = [dataclasses.replace(cell, device=device) for cell in cells(tmp_path, "a")]
    mapped(stand_in, given, monkeypatch, asked)
    assert (stand_in.placed["num_gpus"], stand_in.placed["num_cpus"]) == placed
    assert stand_in.placed["max_retries"] == 0


def test_what_no_node_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StudyError, match="No node of the cluster has 2 GPUs, the largest has 1"):
        mapped(StandIn(CPU=4.0, GPU=1.0), cells(tmp_path, "a"), monkeypatch, Placement(gpus=2))


def test_stopping_cancels_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(ray_executor, "connect", lambda _: stand_in)
    outcomes = Ray(work=work).map(cells(tmp_path, "a", "b", "c"))
    next(outcomes)
    with pytest.raises(GridStopped) as raised:
        outcomes.throw(GridStopped(130))  # pyright: ignore[reportAttributeAccessIssue]  a generator
    assert raised.value.status == 130
    assert sorted(stand_in.cancelled) == ["a", "b"]


def test_ctrl_c_while_ray_waits_ends_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in, before = StandIn(), signal.getsignal(signal.SIGINT)
    waits = stand_in.wait

    def interrupted(*_: Any, **__: Any) -> Any:
        stand_in.wait = waits
        raise KeyboardInterrupt

    stand_in.wait = interrupted
    with pytest.raises(GridStopped) as raised:
        mapped(stand_in, cells(tmp_path, "a", "b"), monkeypatch)
    assert raised.value.status == 130
    assert sorted(stand_in.cancelled) == ["a", "b"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_node_that_is_not_as_this_one_says_so(tmp_path: Path) -> None:
    [cell] = cells(tmp_path, "a")
    assert "has vitlab" in ray_executor.remotely(cell, work, "0.0.1")["error"]
    version = ray_executor.metadata.version("vitlab")
    assert "does not see" in ray_executor.remotely(cell, work, version)["error"]
    Path(cell.folder).parent.mkdir()
    assert ray_executor.remotely(cell, work, version) == work(cell)


# A real cluster: a head without cores, and nodes with one core and one GPU in name each.


def patient(cell: Any) -> Mapping[str, Any]:
    """Writes where it is and a checkpoint, then waits to be let go; begun again, it goes on from the checkpoint."""
    import ray

    folder = Path(cell.folder)
    folder.mkdir(parents=True, exist_ok=True)
    before = int((folder / "checkpoint").read_text()) if (folder / "checkpoint").exists() else 0
    (folder / "checkpoint").write_text(str(before + 1))
    where = {
        "pid": os.getpid(),
        "node": ray.get_runtime_context().get_node_id(),
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    (folder / f"begun{before}").write_text(json.dumps(where))
    while not (folder.parent / "go").exists() and not (folder.parent / f"{cell.name}.go").exists():
        time.sleep(0.05)
    (folder / "result").touch()
    return {"run": where | {"begun": before + 1}, "measures": {}}


@contextlib.contextmanager
def cluster(num_nodes: int) -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False, "include_log_monitor": False}
    try:
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": soon, **small})
    except Exception as error:  # noqa: BLE001  whatever does not let processes listen here
        pytest.skip(f"no Ray cluster can be started here: {error}")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests to import
    try:
        for _ in range(num_nodes):
            add_node(made, num_cpus=1, num_gpus=1, **small)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        ray.shutdown()
        made.shutdown()


def add_node(made: Any, **given: Any) -> None:
    """A busy machine may not start a node within Ray's thirty seconds."""
    for _ in range(3):
        with contextlib.suppress(Exception):
            made.add_node(**given)
            return
    made.add_node(**given)


def begun(folder: str, times: int = 1, seconds: float = 300) -> dict[str, Any]:
    """Where a cell runs, once it was begun so many times."""
    path, end = Path(folder, f"begun{times - 1}"), time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text())
        time.sleep(0.1)
    raise AssertionError(f"{folder} was not begun {times} times")


@pytest.mark.slow
def test_a_worker_and_a_node_are_killed(tmp_path: Path) -> None:
    """Two nodes, three runs: one's worker is killed, another's node; each result comes once, from where it was."""
    said: list[str] = []
    outcomes: list[tuple[str, Mapping[str, Any]]] = []
    given = cells(tmp_path, "worker", "node", "later")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "later.go").touch()  # it waits for a GPU alone
    with cluster(2) as made:
        executor = Ray(work=patient, say=said.append)
        thread = threading.Thread(
            target=lambda: outcomes.extend((cell.name, outcome) for cell, outcome in executor.map(given))
        )
        thread.start()
        first, second = begun(given[0].folder), begun(given[1].folder)
        assert first["node"] != second["node"]  # a GPU each, so a node each
        assert {first["gpu"], second["gpu"]} == {"0"}
        os.kill(first["pid"], signal.SIGKILL)
        assert begun(given[0].folder, 2)["pid"] != first["pid"]
        lost = next(node for node in made.worker_nodes if node.node_id == begun(given[1].folder)["node"])
        made.remove_node(lost, allow_graceful=False)
        (tmp_path / "runs" / "go").touch()
        thread.join(400)
        assert not thread.is_alive()
    found = dict(outcomes)
    assert len(outcomes) == len(found) == 3
    assert {name: outcome["run"]["begun"] for name, outcome in found.items()} == {"worker": 2, "node": 2, "later": 1}
    assert "worker: its worker was lost; it resumes elsewhere (1 of 3)." in said
    assert any(sentence.startswith("node: its ") and "was lost" in sentence for sentence in said)
    assert found["node"]["run"]["node"] != second["node"]
    assert said[0] == "Ray: 3 nodes with 2 cores and 2 GPUs; each run has 1 GPU and 1 core."
    for cell, outcome in Ray("ray://nobody:1", work=lambda cell: {"kept": cell.name}).map(given):
        assert outcome == {"kept": cell.name}  # all are done: nothing is sent, no cluster is asked
