"""The services that benchmarks/serving.py compares, each started with a model's folder and a port.

python benchmarks/serving_peers.py LitServe FOLDER PORT THREADS
"""

import io
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import litserve
import torch
import uvicorn
from fastapi import FastAPI, Request, UploadFile
from PIL import Image
from torch import Tensor

from vitlab import api
from vitlab.cli import main as vitlab_main

BATCH, WAIT, TOP = 8, 0.005, 5


def top_classes(logits: Tensor) -> list[list[dict[str, Any]]]:
    """What each service answers with."""
    values, indices = logits.softmax(dim=-1).topk(TOP)
    return [
        [{"label": f"class {i}", "index": i, "probability": v} for v, i in zip(row, places, strict=True)]
        for row, places in zip(values.tolist(), indices.tolist(), strict=True)
    ]


def serve_vitlab(source: str, port: int, threads: int) -> None:
    options = {"model": source, "port": port, "threads": threads, "max-batch": BATCH, "max-wait-ms": 1000 * WAIT}
    vitlab_main(["serve", *(text for name, value in options.items() for text in (f"--{name}", str(value)))])


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

    def __init__(self, source: str, threads: int) -> None:
        super().__init__(max_batch_size=BATCH, batch_timeout=WAIT, api_path="/v1/predict")
        self.source, self.threads = source, threads

    def setup(self, device: str) -> None:
        del device
        torch.set_num_threads(self.threads)
        self.model = api.load(self.source).eval()

    def decode_request(self, request: Request, **_: Any) -> Tensor:
        return self.model.preprocess(Image.open(io.BytesIO(request["images"].file.read())))[0]

    def batch(self, inputs: list[Tensor]) -> Tensor:
        return torch.stack(inputs)

    def predict(self, x: Tensor, **_: Any) -> list[Any]:
        with torch.inference_mode():
            return top_classes(self.model(x))

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any, **_: Any) -> dict[str, Any]:
        return {"classes": output}


def serve_litserve(source: str, port: int, threads: int) -> None:
    server = litserve.LitServer(Lit(source, threads), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, log_level="error", generate_client_file=False, access_log=False)


SERVICES: dict[str, Callable[[str, int, int], None]] = {
    "vitlab": serve_vitlab,
    "LitServe": serve_litserve,
    "FastAPI, def": serve_in_threads,
    "FastAPI, async def": serve_on_loop,
}

if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[4]))
    SERVICES[sys.argv[1]](sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
