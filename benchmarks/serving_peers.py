"""The services that benchmarks/serving.py compares vitlab with, each started with a model's folder and a port.

python benchmarks/serving_peers.py LitServe FOLDER THREADS PORT
"""

import io
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import litserve
import torch
import torch._inductor.config
import uvicorn
from fastapi import FastAPI, Request, UploadFile
from PIL import Image
from torch import Tensor
from torch._dynamo.utils import counters

from vitlab import api

BATCH, WAIT, TOP = 8, 0.005, 5


def top_classes(logits: Tensor) -> list[list[dict[str, Any]]]:
    """What each service answers with."""
    values, indices = logits.softmax(dim=-1).topk(TOP)
    return [
        [{"label": f"class {i}", "index": i, "probability": v} for v, i in zip(row, places, strict=True)]
        for row, places in zip(values.tolist(), indices.tolist(), strict=True)
    ]


def _fastapi(source: str) -> tuple[FastAPI, Callable[[bytes], dict[str, Any]]]:
    model = api.load(source).eval()

    def answer(raw: bytes) -> dict[str, Any]:
        images = model.preprocess(Image.open(io.BytesIO(raw)))
        with torch.inference_mode():
            return {"classes": top_classes(model(images))[0]}

    return FastAPI(), answer


def serve_in_threads(source: str, port: int, _: int) -> None:
    app, answer = _fastapi(source)

    @app.post("/v1/predict")
    def predict(images: UploadFile) -> dict[str, Any]:
        return answer(images.file.read())

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def serve_on_loop(source: str, port: int, _: int) -> None:
    app, answer = _fastapi(source)

    @app.post("/v1/predict")
    async def predict(images: UploadFile) -> dict[str, Any]:
        return answer(await images.read())

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


class Lit(litserve.LitAPI):
    """As LitServe's guide has it: a batch is collected, then decoded, stacked and predicted in the worker process."""

    def __init__(self, source: str, threads: int, *, compiled: bool) -> None:
        super().__init__(max_batch_size=BATCH, batch_timeout=WAIT, api_path="/v1/predict")
        self.source, self.threads, self.compiled = source, threads, compiled

    def setup(self, device: str) -> None:
        del device
        torch.set_num_threads(self.threads)
        model = api.load(self.source).eval()
        self.preprocess, self.model = model.preprocess, model
        if self.compiled:
            # Frozen, its weights are packed as vitlab's are; `options={"freezing": True}` is taken and does nothing.
            torch._inductor.config.freezing = True
            self.model = torch.compile(model)
            for size in (BATCH, BATCH // 2, 1):  # the second makes the number of images a variable; 1 is a case apart
                self.predict(torch.zeros(size, 3, *model.config.image_size))
            assert counters["inductor"]["mkldnn_linear_weight_pack_matcher_count"], "nothing was packed"

    def decode_request(self, request: Request, **_: Any) -> Tensor:
        return self.preprocess(Image.open(io.BytesIO(request["images"].file.read())))[0]

    def batch(self, inputs: list[Tensor]) -> Tensor:
        return torch.stack(inputs)

    def predict(self, x: Tensor, **_: Any) -> list[Any]:
        with torch.inference_mode():
            return top_classes(self.model(x))

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any, **_: Any) -> dict[str, Any]:
        return {"classes": output}


def serve_litserve(source: str, port: int, threads: int, *, workers: int = 1, compiled: bool = False) -> None:
    lit = Lit(source, max(1, threads // workers), compiled=compiled)
    server = litserve.LitServer(lit, accelerator="cpu", workers_per_device=workers)
    server.run(host="127.0.0.1", port=port, log_level="error", generate_client_file=False, access_log=False)


PEERS: dict[str, Callable[[str, int, int], None]] = {
    "LitServe": serve_litserve,
    "LitServe, 2 workers": partial(serve_litserve, workers=2),
    "LitServe, 2 workers, compiled": partial(serve_litserve, workers=2, compiled=True),
    "FastAPI, def": serve_in_threads,
    "FastAPI, async def": serve_on_loop,
}

if __name__ == "__main__":
    peer, source, threads, port = sys.argv[1:]
    torch.set_num_threads(int(threads))
    PEERS[peer](source, int(port), int(threads))
