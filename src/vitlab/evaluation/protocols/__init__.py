"""The protocols that measure a model as it is: one file each, importable without torch, ending with `PROTOCOL`."""

from vitlab.core.registry import Registry
from vitlab.evaluation.contract import Protocol

NAMES = ("accuracy", "real", "robustness", "semantic", "fewshot", "linear", "knn", "frechet", "cost")
MODULES = tuple(f"evaluation.protocols.{name}" for name in NAMES)
PROTOCOLS = Registry(Protocol, "protocol", "vitlab", "PROTOCOL", MODULES, group="vitlab.protocols")
