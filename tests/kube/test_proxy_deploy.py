"""The proxy of the device plugin as deploy/ ships it: beside the plugin, and with next to no rights."""

from __future__ import annotations

from tests.kube.test_deploy import BASE, Object, accepted, composed, containers
from tidewright.kube.plugin.plugin_proxy import ProxySettings
from tidewright.kube.plugin.service import PluginSettings

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def pod_spec() -> Object:
    [item] = [one for one in composed(BASE) if one["kind"] == "DaemonSet"]
    found: Object = item["spec"]["template"]["spec"]
    return found


def container(name: str) -> Object:
    [item] = [one for one in composed(BASE) if one["kind"] == "DaemonSet"]
    [found] = [one for one in containers(item) if one["name"] == name]
    return found


def test_the_plugin_runs_behind_the_proxy_and_both_look_into_one_folder() -> None:
    plugin, proxy = (
        accepted([*one["command"], *one.get("args", ())]) for one in (container("plugin"), container("proxy"))
    )
    assert plugin.params["behind_proxy"] is True and plugin.params["respawn"] is True
    assert (
        plugin.params["kubelet_dir"]
        == proxy.params["kubelet_dir"]
        == ProxySettings().folder
        == PluginSettings("n").folder
    )


def test_the_proxy_has_the_kubelets_folder_and_nothing_else() -> None:
    proxy = container("proxy")
    assert proxy["volumeMounts"] == [{"name": "device-plugins", "mountPath": str(ProxySettings().folder)}]
    assert "env" not in proxy
    assert proxy["securityContext"] == container("plugin")["securityContext"]
    assert proxy["resources"]["limits"]["memory"]


def test_the_accounts_token_is_the_plugins_alone() -> None:
    spec = pod_spec()
    assert spec["automountServiceAccountToken"] is False
    [own] = [one for one in container("plugin")["volumeMounts"] if one["mountPath"] == TOKEN]
    [volume] = [one for one in spec["volumes"] if one["name"] == own["name"]]
    files = [path for source in volume["projected"]["sources"] for path in paths(source)]
    assert files == ["token", "ca.crt", "namespace"]
    assert not [one for one in container("proxy")["volumeMounts"] if one["name"] == own["name"]]


def paths(source: Object) -> list[str]:
    [inner] = source.values()
    return [inner["path"]] if "path" in inner else [one["path"] for one in inner["items"]]


def test_the_pod_has_time_for_its_farewell() -> None:
    assert ProxySettings().linger_s + 5 < pod_spec().get("terminationGracePeriodSeconds", 30)
