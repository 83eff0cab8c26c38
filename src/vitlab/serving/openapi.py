"""The OpenAPI 3.1 document of a service."""

from collections.abc import Mapping
from typing import Any

from vitlab.core.record import VERSION
from vitlab.serving.engine import Engine
from vitlab.serving.http.errors import CODES
from vitlab.serving.limits import Limits
from vitlab.serving.metrics import CONTENT_TYPE as METRICS_TYPE
from vitlab.serving.query import MOST_TOP, TOP

ANYWHERE = ("bad_request", "wrong_host", "head_too_large", "internal", "overloaded", "method_not_allowed")
WITH_TOKEN = ("unauthorized",)
WITH_IMAGES = (
    *("bad_parameter", "cross_site", "receive_timeout", "body_too_large", "too_many_images", "too_many_pixels"),
    *("unsupported_type", "unsupported_image", "damaged_image", "impossible", "not_ready"),
)
PREDICT_SUMMARIES = {  # by the kind of answer
    None: "The most probable classes of images",
    "classes": "The most probable classes of images",
    "numbers": "The numbers that the model says of images",
    "mask": "The class of each pixel of images",
}
IMAGE_TYPES = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
}


def document(engine: Engine, limits: Limits, *, needs_token: bool) -> dict[str, Any]:
    """The whole document; `needs_token` says whether a token is asked for."""
    paths: dict[str, Any] = {
        "/v1/predict": {"post": _post("predict", PREDICT_SUMMARIES[engine.answers], engine, limits, needs_token)},
        "/v1/embed": {"post": _post("embed", "The feature vectors of images", engine, limits, needs_token)},
        "/v1/attention": {"post": _post("attention", "Where the model looks in images", engine, limits, needs_token)},
        "/v1/tokens": {"post": _post("tokens", "How alike the tokens of images are", engine, limits, needs_token)},
        "/v1/model": {"get": _get("model", "What is served", _json_of("Model"), ("bad_parameter",), needs_token)},
        "/v1/learned": {
            "get": _get("learned", "Filters and positions", _json_of("Learned"), ("bad_parameter",), needs_token)
        },
        "/healthz": {"get": _get("healthz", "Whether the process answers", _json_of("Status"), (), False)},
        "/readyz": {"get": _get("readyz", "Whether images are taken", _json_of("Status"), ("not_ready",), False)},
        "/metrics": {
            "get": _get(
                "metrics",
                "Counts and times for Prometheus",
                {METRICS_TYPE: {"schema": {"type": "string"}}},
                (),
                needs_token,
            )
        },
        "/openapi.json": {
            "get": _get("openapi", "This document", {"application/json": {"schema": {"type": "object"}}}, (), False)
        },
    }
    components: dict[str, Any] = {"schemas": _schemas(engine, limits)}
    if needs_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"vitlab: {engine.name}",
            "version": VERSION,
            "summary": "A vision model over HTTP",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": components,
    }


def _get(
    name: str, summary: str, content: Mapping[str, Any], codes: tuple[str, ...], needs_token: bool
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "responses": {"200": {"description": summary, "content": content}, **_errors(*codes, needs_token=needs_token)},
    }
    return operation | ({"security": [{"token": []}]} if needs_token else {})


def _post(name: str, summary: str, engine: Engine, limits: Limits, needs_token: bool) -> dict[str, Any]:
    answer = {"predict": "Predictions", "embed": "Embeddings", "attention": "Attention", "tokens": "Tokens"}[name]
    operation = _get(name, summary, _json_of(answer), WITH_IMAGES, needs_token)
    parameters = {
        "predict": [_top()],
        "embed": [],
        "attention": _attention_parameters(engine),
        "tokens": [_after_layer(engine)],
    }[name]
    several = {"type": "array", "items": _binary(limits), "minItems": 1, "maxItems": limits.images}
    body = {
        **{IMAGE_TYPES[name]: {"schema": _binary(limits)} for name in limits.formats},
        "application/octet-stream": {"schema": _binary(limits)},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"images": several},
                "required": ["images"],
                "additionalProperties": False,
            }
        },
        "application/json": {"schema": {"$ref": "#/components/schemas/Images"}},
    }
    return operation | {"parameters": parameters, "requestBody": {"required": True, "content": body}}


def _top() -> dict[str, Any]:
    schema = {"type": "integer", "minimum": 1, "maximum": MOST_TOP, "default": TOP}
    return {"name": "top", "in": "query", "description": "How many classes to give.", "schema": schema}


def _after_layer(engine: Engine) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": 0, "maximum": len(engine.grids) - 1}
    text = "After which layer, by default the last; 0 is before the first."
    return {"name": "layer", "in": "query", "description": text, "schema": schema}


def _attention_parameters(engine: Engine) -> list[dict[str, Any]]:
    layers, heads = max(engine.num_layers, 1), min(engine.num_heads, default=1)
    schemas: dict[str, tuple[str, dict[str, Any]]] = {
        "rollout": ("Whether to give the rollout over all layers.", {"type": "boolean", "default": True}),
        "layer": ("Give this layer's heads too, counted from 1.", {"type": "integer", "minimum": 1, "maximum": layers}),
        "head": (
            "Only this head, counted from 1; without a layer, of the last.",
            {"type": "integer", "minimum": 1, "maximum": heads},
        ),
        "rows": (
            "output: from the tokens that the answer is read from to the patches, as the grid; all: from every token to"
            " every token, prefix tokens first.",
            {"type": "string", "enum": ["output", "all"], "default": "output"},
        ),
    }
    return [
        {"name": name, "in": "query", "description": text, "schema": schema} for name, (text, schema) in schemas.items()
    ]


def _binary(limits: Limits) -> dict[str, Any]:
    taken = f"An image ({', '.join(limits.formats)}) of at most {limits.pixels:,} pixels."
    return {"type": "string", "format": "binary", "description": taken, "maxLength": limits.body_bytes}


def _json_of(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _errors(*codes: str, needs_token: bool) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in (*ANYWHERE, *(WITH_TOKEN if needs_token else ()), *codes):
        by_status.setdefault(CODES[code][0], []).append(code)
    responses: dict[str, Any] = {}
    for status, same in sorted(by_status.items()):
        text = " ".join(f"`{code}`: {CODES[code][1]}." for code in same)
        responses[str(status)] = {"description": text, "content": _json_of("Error")}
    responses["503"]["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return responses


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _prediction(engine: Engine, scored: dict[str, Any], share: dict[str, Any]) -> dict[str, Any]:
    """What the model says of an image, of the one kind that this model's answers are."""
    if engine.answers == "numbers":
        return _object(numbers={"type": "object", "additionalProperties": {"type": "number"}})
    if engine.answers != "mask":
        return _object(classes=_list(scored))
    png = {
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": "image/png",
        "description": "The class number of each pixel at the size that the model sees, with a palette.",
    }
    shares = {"type": "object", "additionalProperties": share, "description": "Of the picture, by class."}
    return _object(shares=shares, mask=png)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _schemas(engine: Engine, limits: Limits) -> dict[str, Any]:
    whole, number, text = {"type": "integer"}, {"type": "number"}, {"type": "string"}
    share = {"type": "number", "minimum": 0, "maximum": 1}
    matrix = _list(_list(share))
    cosines = _list(_list({"type": "number", "minimum": -1, "maximum": 1}))
    grid = _list(whole, minItems=2, maxItems=2)
    labels = {"type": ["array", "null"], "items": text}
    base64 = {
        "type": "string",
        "format": "base64-image",
        "contentEncoding": "base64",
        "maxLength": limits.body_bytes,
        "description": "An image in base64 (RFC 4648, section 4), without line breaks.",
    }
    error = _object(code={"type": "string", "enum": list(CODES)}, message=text)
    error["properties"]["image"] = {"type": "integer", "minimum": 0, "description": "Which image, counted from 0."}
    scored = _object(label=text, index={"type": "integer", "minimum": 0}, probability=share)
    width = engine.model.num_features
    return {
        "Error": _object(error=error),
        "Status": _object(status=text),
        "Images": _object(images=_list(base64, minItems=1, maxItems=limits.images)),
        "Predictions": _object(predictions=_list(_prediction(engine, scored, share))),
        "Embeddings": _object(embeddings=_list(_list(number, minItems=width, maxItems=width))),
        "Attention": _object(
            grid=grid,
            num_prefix=whole,
            rows={"type": "string", "enum": ["output", "all"]},
            layer={"type": ["integer", "null"]},
            head={"type": ["integer", "null"]},
            images=_list(
                _object(
                    rollout={"anyOf": [matrix, {"type": "null"}]},
                    heads={"anyOf": [_list(matrix), {"type": "null"}]},
                )
            ),
        ),
        "Tokens": _object(
            layer=whole,
            grid=grid,
            images=_list(_object(norms=_list(_list({"type": "number", "minimum": 0})), similarity=cosines)),
        ),
        "Learned": _object(
            grid=grid,
            filters=_or_null(
                _object(pictures=_list(_list(matrix)), explained=_list(share), smooth={"type": ["integer", "null"]})
            ),
            positions=_or_null(cosines),
            nearness=_or_null(_object(correlation=number, clear={"type": "boolean"})),
        ),
        "Model": _object(
            name=text,
            version=text,
            family=text,
            parameters=whole,
            num_classes=whole,
            labels=labels,
            num_features=whole,
            grid=grid,
            num_prefix=whole,
            patch=_or_null(grid),
            token_grids=_list(grid),
            answers={"enum": ["classes", "numbers", "mask", None]},
            reads={"enum": ["prefix", "patches", None]},
            attention=_or_null(_object(layers=whole, heads=_list(whole))),
            config={"type": "object"},
            preprocess={"type": "object"},
            limits=_object(
                body_bytes=whole,
                images=whole,
                pixels=whole,
                request_pixels=whole,
                formats=_list(text),
                values=whole,
            ),
        ),
    }
