"""The kubelet's half of Dynamic Resource Allocation, over real sockets: it finds drivers and has claims prepared.

Source: kubernetes pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra, and every RPC recorded from a v1.36 kubelet: GetInfo,
NotifyRegistrationStatus, NodePrepareResources with the claims of a pod, NodeUnprepareResources when it is gone. A claim
that is prepared is not asked for again when another pod comes to share it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..kube.dra.protocol import DRA, PLUGIN, REGISTERING, REGISTRATION, TYPE, VERSION, messages
from ..kube.node.proto import grpc_module

ANSWER_S = 10.0
ContainerAllocation = tuple[str, str, str]
"""Namespace, name, uid."""


@dataclass
class FakeDraKubelet:
    """``calls``: (RPC, its request) in order. ``refuse``: registrations are refused with this text."""

    registry: Path
    refuse: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    endpoint: str = ""

    async def look(self) -> bool:
        """Once through the folder, as after a start; whether a driver was found there and taken."""
        for path in sorted(self.registry.glob("*-reg.sock")):
            await self._register(path)
        return bool(self.endpoint)

    async def _register(self, path: Path) -> None:
        kinds = messages()[0]
        info = await self._ask(path, REGISTERING, REGISTRATION, "GetInfo", kinds.InfoRequest())
        wrong = self.refuse or ("" if info.type == TYPE and VERSION in info.supported_versions else "unsupported")
        status = kinds.RegistrationStatus(plugin_registered=not wrong, error=wrong)
        await self._ask(path, REGISTERING, REGISTRATION, "NotifyRegistrationStatus", status)
        self.endpoint = "" if wrong else info.endpoint

    async def prepare(self, *claims: ContainerAllocation) -> dict[str, Any]:
        """By uid: what each has. Raises AioRpcError, which stops all of the pod's claims."""
        kinds = messages()[1]
        asked = kinds.NodePrepareResourcesRequest(claims=_claims(claims))
        answer = await self._ask(Path(self.endpoint), DRA, PLUGIN, "NodePrepareResources", asked)
        return dict(answer.claims)

    async def unprepare(self, *claims: ContainerAllocation) -> dict[str, str]:
        """By uid: errors, empty where it went well."""
        kinds = messages()[1]
        asked = kinds.NodeUnprepareResourcesRequest(claims=_claims(claims))
        answer = await self._ask(Path(self.endpoint), DRA, PLUGIN, "NodeUnprepareResources", asked)
        return {uid: one.error for uid, one in answer.claims.items()}

    async def _ask(self, path: Path, api: Any, service: str, method: str, request: Any) -> Any:
        self.calls.append((method, request))
        options = [("grpc.enable_http_proxy", 0)]
        async with grpc_module().aio.insecure_channel(f"unix:{path}", options=options) as channel:
            async with asyncio.timeout(ANSWER_S):
                return await api.caller(channel, service, method)(request)


def _claims(claims: tuple[ContainerAllocation, ...]) -> list[Any]:
    kind = messages()[1].Claim
    return [kind(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims]
