"""The protocols that measure a model as it is: one file each, importable without torch, ending with `PROTOCOL`."""

from vitlab.core.registry import Registry
from vitlab.evaluation.contract import Protocol

MODULES = tuple(
    f"evaluation.protocols.{name}" for name in ("accuracy", "real", "robustness", "fewshot", "linear", "knn", "cost")
)
PROTOCOLS = Registry(Protocol, "protocol", "vitlab", "PROTOCOL", MODULES, group="vitlab.protocols")
