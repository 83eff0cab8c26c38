"""What the verbs do, as functions, a file for each. Nothing here prints."""

from vitlab.api.data import examine_data
from vitlab.api.embed import embed
from vitlab.api.evaluate import evaluate
from vitlab.api.export import export, export_int8
from vitlab.api.finetune import finetune
from vitlab.api.inspect import inspect
from vitlab.api.predict import predict
from vitlab.api.pretrain import pretrain
from vitlab.api.push import push
from vitlab.api.report import report
from vitlab.api.sample import sample
from vitlab.api.study import study
from vitlab.api.train import resume, train
from vitlab.inference.predict import Prediction, Predictions
from vitlab.models.create import create
from vitlab.models.zoo.rows import ZooRow, list_models
from vitlab.tasks.contract import Answer, Scored
from vitlab.weights.load import load, save

__all__ = [
    "Answer",
    "Prediction",
    "Predictions",
    "Scored",
    "ZooRow",
    "create",
    "embed",
    "evaluate",
    "examine_data",
    "export",
    "export_int8",
    "finetune",
    "inspect",
    "list_models",
    "load",
    "predict",
    "pretrain",
    "push",
    "report",
    "resume",
    "sample",
    "save",
    "study",
    "train",
]
