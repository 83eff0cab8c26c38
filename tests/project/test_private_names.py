"""Every private name of a dependency that the package uses: the versions that had it, and what happens without it.

A name that is not listed here fails the first test, one that a new version lacks the second; the others show that what
is said of a missing one is so.
"""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vitlab.core.compiling import compile_options
from vitlab.core.errors import ConfigError
from vitlab.core.processes import first_alone
from vitlab.exporting import program as export
from vitlab.models import stages
from vitlab.serving import packing
from vitlab.training import distribution

SOURCE = Path(__file__).parents[2] / "src" / "vitlab"
PUBLIC_ENOUGH = ("_foreach_", "_asdict", "_replace")  # torch.optim's own vocabulary; named tuples' documented methods


@dataclass(frozen=True)
class Private:
    """A private name, the attribute that has it (from a module on), the versions it was seen in, and life without."""

    name: str
    attribute: str
    seen: str
    without: str


USED = [
    Private("_inductor", "torch:_inductor.list_options", "torch 2.13", "the compiler's defaults"),
    Private("_C", "torch:_C", "torch 2.13", "as the next"),
    Private(
        "_current_graph_task_id",
        "torch:_C._current_graph_task_id",
        "torch 2.13",
        "batch norms inside of a timm model that recomputes its layers count a batch twice",
    ),
    Private("_reorder_linear_weight", "torch:ops.mkldnn._reorder_linear_weight", "torch 2.13", "plain layers"),
    Private("_linear_pointwise", "torch:ops.mkldnn._linear_pointwise", "torch 2.13", "plain layers"),
    Private(
        "_set_params_and_buffers_to_ignore_for_model",
        "torch.nn.parallel:DistributedDataParallel._set_params_and_buffers_to_ignore_for_model",
        "torch 2.13",
        "a ConfigError that names the other values of --strategy",
    ),
    Private(
        "_guards_code",
        "torch.export:ExportedProgram._guards_code",
        "torch 2.13; an attribute of instances",
        "the program keeps its conditions, and the check after the export tells",
    ),
    Private(
        "_get_default_store",
        "torch.distributed.distributed_c10d:_get_default_store",
        "torch 2.13",
        "the processes of a run do not wait for the first one's report",
    ),
    Private(
        "_pg_registry",
        "torch.distributed.device_mesh:DeviceMesh.__annotations__",
        "torch 2.13; an attribute of meshes",
        "gloo's threads may be there when the interpreter ends, and then abort the process",
    ),
    Private(
        "_pos_embed",
        "timm.models.vision_transformer:VisionTransformer._pos_embed",
        "timm 1.0.30",
        "timm's ViTs are used whole, as its other models are: without patches of their own",
    ),
]


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and not name.startswith(PUBLIC_ENOUGH)


def own_names(nodes: list[ast.AST]) -> Iterator[str]:
    """Private names that a file defines: functions, classes, variables, parameters, and attributes that it sets."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                yield name
            case _:
                pass


def used_names(nodes: list[ast.AST]) -> Iterator[str]:
    """Private names that a file takes from something: by a dot, by getattr, or by an import."""
    for node in nodes:
        match node:
            case ast.Attribute(attr=name):
                yield name
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
                yield name
            case ast.ImportFrom(module=str(module), names=names):
                yield from module.split(".")
                yield from (alias.name for alias in names)
            case ast.Import(names=names):
                yield from (part for alias in names for part in alias.name.split("."))
            case _:
                pass


def test_every_private_name_is_listed() -> None:
    files = [list(ast.walk(ast.parse(file.read_text(encoding="utf-8")))) for file in sorted(SOURCE.rglob("*.py"))]
    own = {name for nodes in files for name in own_names(nodes)}
    used = {name for nodes in files for name in used_names(nodes) if private(name)}
    assert used - own - {"_keeping"} == {item.name for item in USED}  # _keeping: ours, on a norm of torch's


@pytest.mark.parametrize("item", USED, ids=lambda item: item.name)
def test_what_is_installed_still_has_it(item: Private) -> None:
    module, _, path = item.attribute.partition(":")
    value: Any = importlib.import_module(module)
    if "instances" in item.seen:
        program = torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),))
        assert isinstance(getattr(program, item.name, None), list), f"gone; now: {item.without}"
        return
    if "meshes" in item.seen:
        assert item.name in torch.distributed.device_mesh.DeviceMesh.__annotations__, f"gone; now: {item.without}"
        return
    for name in path.split("."):
        assert hasattr(value, name), f"{item.attribute} was seen in {item.seen} and is gone; now: {item.without}"
        value = getattr(value, name)


def test_without_inductors_options_its_defaults_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._inductor, "list_options")
    assert compile_options(torch.device("cuda")) == {}


class Again(torch.autograd.Function):
    """A norm that is called once more in the backward pass, as a model that recomputes its layers does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        ctx.x, ctx.norm = x, norm
        return norm(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.norm(ctx.x)
        return gradients[0], None


def test_without_the_graph_task_batch_norms_count_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def passes() -> int:
        norm = nn.BatchNorm2d(2)
        stages.count_once(norm)
        y: Any = Again.apply(torch.randn(4, 2, 3, 3, requires_grad=True), norm)
        y.sum().backward()
        assert norm.num_batches_tracked is not None
        return int(norm.num_batches_tracked)

    assert passes() == 1
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    assert passes() == 2


def test_without_mkldnns_operators_layers_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert packing.should_pack() == torch.backends.mkldnn.is_available()
    monkeypatch.setattr(torch, "ops", SimpleNamespace(mkldnn=SimpleNamespace()))
    assert not packing.should_pack()


def test_without_ddps_list_experts_are_not_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")
    with pytest.raises(ConfigError, match="cannot spread experts: use --strategy replicate or shard"):
        distribution._leave_out(nn.Linear(2, 2), ["weight"])


def test_without_the_store_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.distributed.distributed_c10d, "_get_default_store")
    for name, value in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 1)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    with first_alone() as first:
        assert not first


def test_without_its_registry_a_mesh_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mesh:
        pass

    mesh = Mesh()
    monkeypatch.setattr(distribution, "DeviceMesh", Mesh)
    distribution._leave()
    assert vars(mesh) == {}


def test_without_guards_a_program_keeps_them() -> None:
    program: Any = SimpleNamespace()
    model: Any = SimpleNamespace(config=SimpleNamespace(channels=3))
    export._accept_sizes(program, [(8, 8)], model, export.Form(pixels=False))
    assert vars(program) == {}


def test_without_its_positions_a_vit_of_timms_is_used_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")
    from vitlab.models.timm.adapter import _form

    net = timm.create_model("test_vit")
    tokens = net.forward_features(torch.zeros(1, 3, 160, 160))
    assert _form(net, tokens) == "vit"
    monkeypatch.delattr(timm.models.vision_transformer.VisionTransformer, "_pos_embed")
    assert _form(net, tokens) == "sequence"
