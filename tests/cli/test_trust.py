"""Who may ask a controller for what: real daemons, a real second user, real TLS."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_up_down import Real
from tests.ports import free_port
from tidewright.base.errors import UsageError
from tidewright.cli.pool import up
from tidewright.cli.shell import run
from tidewright.live.api import access
from tidewright.wire.client import Client

UID = 61234
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def tide(tmp_path: Path) -> Iterator[Real]:
    real = Real(tmp_path / "state")
    yield real
    real("down", "--jobs")


def authority(folder: Path, name: str = "localhost") -> tuple[Path, Path, Path]:
    """A certificate of ``name`` and 127.0.0.1 made by an authority of its own: its certificate, chain and key."""
    config = folder / "openssl.cnf"
    config.write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")

    def openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    ca, key, request = (folder / name for name in ("ca.pem", "key.pem", "request.pem"))
    signed = ("-x509", "-days", "2", "-addext", "keyUsage=critical,keyCertSign")
    openssl("req", *signed, *curve, "-subj", "/CN=test authority", "-keyout", folder / "ca.key", "-out", ca)
    openssl("req", *curve, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    by = ("-CA", ca, "-CAkey", folder / "ca.key", "-days", "2", "-extfile", config)
    openssl("x509", "-req", "-in", request, *by, "-out", folder / "cert.pem")
    (folder / "key.pem").chmod(0o600)
    return folder / "ca.pem", folder / "cert.pem", folder / "key.pem"


openssl = pytest.mark.skipif(not os.path.exists("/usr/bin/openssl"), reason="makes certificates with openssl")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_all_addresses_are_shown_by_the_name_that_clients_can_ask(host: str) -> None:
    assert up._reached(f"{host}:7700") == f"{socket.gethostname()}:7700"
    assert up._reached("10.0.0.1:7700") == "10.0.0.1:7700"


@root
def test_root_hands_no_shell_to_the_network(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="as root"):
        access.check("127.0.0.1:0", ("", ""), "")
    assert access.check("", ("", ""), "") is None


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_other_machines_are_served_by_tls_only(listen: str) -> None:
    with pytest.raises(UsageError, match="in clear"):
        access.check(listen, ("", ""), "nobody")


def test_loopback_needs_no_tls() -> None:
    for listen in ("127.0.0.1:0", "localhost:0", "[::1]:0"):
        assert access.check(listen, ("", ""), "nobody") is None


@openssl
def test_certificates_that_cannot_be_used_are_refused_at_once(tmp_path: Path) -> None:
    ca, certificate, key = map(str, authority(tmp_path))
    assert access.check("0.0.0.0:0", (certificate, key), "nobody") is not None
    for pair, says in [
        ((certificate, ""), "both"),
        (("", key), "both"),
        ((ca, key), "cannot be used"),
        ((certificate, key + "x"), "cannot be read"),
    ]:
        with pytest.raises(UsageError, match=says):
            access.check("0.0.0.0:0", pair, "nobody")
    os.chmod(key, 0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        access.check("0.0.0.0:0", (certificate, key), "nobody")


def test_a_token_is_not_sent_in_clear() -> None:
    for url in ("http://192.0.2.1:7700", "http://example.com", "192.0.2.1:7700"):
        with pytest.raises(UsageError, match="in clear"):
            Client(url=url, token="t" * 32).info()


@root
@openssl
@pytest.mark.processes
def test_tls_an_account_and_true_names(tide: Real, tmp_path: Path) -> None:
    ca, certificate, key = authority(tmp_path)
    refused = tide("up", "--slots", "1", "--listen", "127.0.0.1:0")
    assert refused.returncode == 2 and "--jobs-as" in refused.stderr and not (tide.state / "controller.pid").exists()
    address = f"127.0.0.1:{free_port()}"
    up = tide(
        "up",
        "--slots",
        "1",
        "--listen",
        address,
        "--jobs-as",
        str(UID),
        "--tls-cert",
        str(certificate),
        "--tls-key",
        str(key),
    )
    assert up.returncode == 0 and f"tide --url https://{address}" in up.stdout, up.stderr
    over = ["--url", f"https://{address}", "--token-file", str(tide.state / "token")]
    stranger = tide(*over, "ps")
    assert stranger.returncode == 2 and "not trusted" in stranger.stderr and "--tls-ca" in stranger.stderr
    clear = tide("--url", f"http://{address}", "--token-file", str(tide.state / "token"), "ps")
    assert clear.returncode != 0 and "write https://" in clear.stderr
    over += ["--tls-ca", str(ca)]
    (wrong := tmp_path / "wrong").write_text("x" * 43)
    wrong.chmod(0o600)
    foreign = tide(over[0], over[1], "--token-file", str(wrong), *over[4:], "ps")
    assert foreign.returncode == 2 and "is not this controller's" in foreign.stderr
    assert tide(*over, "ps").returncode == 0
    done = tide(
        *over, "run", "--workdir", "/", "--follow", "--", "sh", "-c", "id -u; echo $HOME; echo x >> /dev/stderr"
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-3:] == [str(UID), "/", "x"], done
    assert tide("run", "--workdir", "/", "--follow", "--", "id", "-u").stdout.splitlines()[-1] == str(UID)
    users = {job.id: job.user for job in Client(tide.state).jobs(all=True).jobs}
    assert users == {1: f"{ME}[token]", 2: ME}
    assert f"{UID}\n" in tide(*over, "logs", "1").stdout


@root
@pytest.mark.processes
def test_the_account_stays_when_the_option_goes(tide: Real) -> None:
    """A job that came in with the token must not become root's because the controller is started otherwise."""
    address = f"127.0.0.1:{free_port()}"
    assert tide("up", "--slots", "1", "--listen", address, "--jobs-as", str(UID)).returncode == 0
    over = ["--url", f"http://{address}", "--token-file", str(tide.state / "token")]
    assert tide(*over, "run", "--workdir", "/", "--", "sleep", "100").returncode == 0
    assert tide(*over, "run", "--workdir", "/", "--", "id", "-u").returncode == 0
    assert tide("down").returncode == 0
    assert tide("up", "--listen", "none", "--jobs-as", "none").returncode == 0
    assert tide("run", "--workdir", "/", "--", "id", "-u").returncode == 0
    assert tide("cancel", "1").returncode == 0
    assert tide("wait", "2", "3").returncode == 0
    assert (tide("logs", "2").stdout, tide("logs", "3").stdout) == (f"{UID}\n", "0\n")


@root
@pytest.mark.processes
def test_a_log_is_shown_only_if_it_is_the_accounts(tide: Real, tmp_path: Path) -> None:
    """A job names its log; the controller must not read root's files for it."""
    secret = tmp_path / "shadow"
    secret.write_text("root:hash\n")
    address = f"127.0.0.1:{free_port()}"
    assert tide("up", "--slots", "1", "--listen", address, "--jobs-as", str(UID)).returncode == 0
    over = ["--url", f"http://{address}", "--token-file", str(tide.state / "token")]
    assert tide(*over, "run", "--workdir", "/", "--output", str(secret), "--", "true").returncode == 0
    tide(*over, "wait", "1")
    assert "hash" not in tide(*over, "logs", "1").stdout
    assert secret.read_text() == "root:hash\n"


AS = """
import os, sys
os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})
from tidewright.cli import main
sys.argv = ["tide", *sys.argv[1:]]
main()
"""


def as_other(*arguments: str, uid: int = UID) -> subprocess.CompletedProcess[str]:
    """Type a command as another user, whose Python was loaded before it became that."""
    code = (
        "import tidewright.cli, tidewright.cli.jobs.ps, tidewright.cli.jobs.run, "
        "tidewright.cli.pool.doctor, tidewright.wire.client" + AS.format(uid=uid)
    )
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, cwd="/")


def test_a_certificate_without_an_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--state", str(tmp_path / "state"), "up", "--tls-cert", "chain.pem"]) == 2
    assert "--listen" in capsys.readouterr().err and not (tmp_path / "state" / "controller.lock").exists()
