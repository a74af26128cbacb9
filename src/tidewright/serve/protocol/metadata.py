"""Metadata of servers and models (Open Inference Protocol, version 2, "Server Metadata" and "Model Metadata")."""

from __future__ import annotations

from typing import Any

from .signature import ANY, ModelSignature, TensorSignature

PLATFORM = "tidewright_python"
EXTENSIONS = ("binary_tensor_data",)


def server_metadata(version: str) -> dict[str, Any]:
    """Of the gateway."""
    return {"name": "tidewright", "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(name: str, version: str, signature: ModelSignature) -> dict[str, Any]:
    """Of one model; the dimension of batches is -1."""
    return {
        "name": name,
        "versions": [version],
        "platform": PLATFORM,
        "inputs": [_tensor(one, signature.batched) for one in signature.inputs],
        "outputs": [_tensor(one, signature.batched) for one in signature.outputs],
    }


def _tensor(one: TensorSignature, batched: bool) -> dict[str, Any]:
    return {"name": one.name, "datatype": one.datatype, "shape": [ANY] * batched + list(one.shape)}
