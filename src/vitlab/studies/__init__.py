"""Grids of recipes that make a table or a figure, and every protocol: evaluation's, and those here that train."""

from vitlab.core.registry import Registry
from vitlab.evaluation import protocols
from vitlab.evaluation.contract import Protocol

MODULES = (*protocols.MODULES, "studies.score", "studies.finetune", "studies.vtab")
PROTOCOLS = Registry(Protocol, "protocol", "vitlab", "PROTOCOL", MODULES, group="vitlab.protocols")
