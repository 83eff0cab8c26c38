"""Grids of recipes that make a table or a figure, and every protocol: evaluation's, and those here that train."""

from vitlab.core.registry import Registry
from vitlab.evaluation import protocols
from vitlab.evaluation.contract import Protocol
from vitlab.studies.contract import Study

MODULES = (*protocols.MODULES, "studies.score", "studies.finetune", "studies.vtab")
PROTOCOLS = Registry(Protocol, "protocol", "vitlab", "PROTOCOL", MODULES, group="vitlab.protocols")
STUDIES = Registry(
    Study,
    "study",
    "vitlab.studies",
    "STUDY",
    (
        "positions",
        "shape",
        "heads",
        "optimizers",
        "resolution",
        "data_size",
        "cost",
        "self_supervision",
        "vtab_groups",
        "bias",
        "leaderboard",
        "noisy_student",
    ),
)
