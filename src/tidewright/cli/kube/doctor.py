"""``tide kube doctor``."""

from __future__ import annotations

import click

from .. import output as out
from .options import CONFIG, CONTEXT

LEVELS = {"ok": "ok  ", "note": "note", "bad": "BAD "}
STYLES = {"ok": "green", "note": "yellow", "bad": "red"}


@click.command("doctor", short_help="Check a cluster and say what to do.")
@CONFIG
@CONTEXT
@click.option("--account", default="", metavar="USER",
              help="Whose rights alone, such as system:serviceaccount:kube-system:tidewright-plugin. Default: those of all our "
              "accounts in the cluster; yours where there are none.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(kubeconfig: str, context: str, account: str, output: str) -> int:
    """Check version, rights, extender, device plugins, schedulers, nodes and pods of a cluster; each finding says what to do.

    Changes nothing. It takes some seconds longer when a scheduler's Lease looks old, to see whether it is renewed. The exit
    code is 1 when something is bad.
    """
    from ...app.kube.cluster import ClusterTarget
    from ...app.kube.doctor import diagnose

    findings = diagnose(ClusterTarget(kubeconfig, context), account)
    sound = not any(finding.level == "bad" for finding in findings)
    if output == "json":
        out.print_json(
            {"sound": sound, "findings": [
                {"what": one.what, "level": one.level, "text": one.text, "next": one.next} for one in findings
            ]}
        )  # fmt: skip
        return int(not sound)
    for one in findings:
        level = LEVELS[one.level]
        shown = click.style(level, fg=STYLES[one.level]) if out.colourful() else level
        click.echo(f"{shown}  {one.what}: {one.text}")
        if one.next:
            click.echo(f"      {one.next}")
    return int(not sound)
