"""Nothing that is read from a file may run: every reader of pickles in the package is a restricted one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "vitlab"
# a function that can unpickle, and the keyword that forbids it
CAREFUL = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "np.lib.format.read_array": ("allow_pickle", False),
}
# functions and classes that unpickle whatever they are given
CARELESS = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "dcp.FileSystemReader",
    "dcp.DefaultLoadPlanner",
    "FileSystemReader",
    "DefaultLoadPlanner",
    "torch.jit.load",
    "pd.read_pickle",
}
OTHERS = {"cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"}
# pickles of this very program's: a data set that it puts into its own shared memory
OWN = {("data/loading/shared_memory.py", "pickle.loads")}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def mistakes(text: str) -> list[str]:
    """What in a module's text could unpickle anything."""
    tree, found = ast.parse(text), list[str]()
    for name, call in calls(tree):
        if name in CARELESS:
            found.append(name)
        if name in CAREFUL:
            keyword, value = CAREFUL[name]
            said = {item.arg: item.value for item in call.keywords}.get(keyword)
            if not isinstance(said, ast.Constant) or said.value is not value:
                found.append(name)
        if name == "dcp.load" and not {"storage_reader", "planner"} <= {item.arg for item in call.keywords}:
            found.append(name)
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(bases=bases, body=body) if {"pickle.Unpickler"} & {ast.unparse(base) for base in bases}:
                if not any(isinstance(item, ast.FunctionDef) and item.name == "find_class" for item in body):
                    found.append(node.name)
            case ast.Import(names=names):
                found += [alias.name for alias in names if alias.name.partition(".")[0] in OTHERS]
            case ast.ImportFrom(module=str(module), names=names):
                found += [module] if module.partition(".")[0] in OTHERS else []
                if module in ("pickle", "torch", "numpy", "torch.serialization"):
                    found += [f"{module}.{alias.name}" for alias in names if alias.name in ("load", "loads")]
            case _:
                pass
    return found


def test_no_module_unpickles_what_it_is_given() -> None:
    found = {
        (file.relative_to(SOURCE).as_posix(), name)
        for file in SOURCE.rglob("*.py")
        for name in mistakes(file.read_text(encoding="utf-8"))
    }
    assert found == OWN


@pytest.mark.parametrize(
    "text",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "pickle.load(stream)",
        "dcp.load(tensors, checkpoint_id=path)",
        "dcp.load(tensors, storage_reader=dcp.FileSystemReader(path), planner=SafePlanner())",
        "class Reader(pickle.Unpickler):\n    pass",
        "import joblib",
        "from torch import load",
    ],
)
def test_a_careless_reader_would_be_found(text: str) -> None:
    assert mistakes(text)
