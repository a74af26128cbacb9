"""Messages to a real mail server and a real receiver: signed, tried again, given up, and never doubled by a kill."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.notify.receivers import mail_server, receiver
from tests.notify.test_news import T0, reply
from tidewright.base.errors import UsageError
from tidewright.base.units import DAY, HOUR, SECOND
from tidewright.model.notify import Notify, hide_targets, wrong_notify
from tidewright.notify import closing, mail, outbox, webhook
from tidewright.notify.compose import messages
from tidewright.notify.mail import Mailer, SmtpServer, completed, parse_smtp, read_password
from tidewright.notify.news import SeenJob
from tidewright.notify.outbox import Notification, Outbox
from tidewright.notify.sender import Channel, Sender, shown
from tidewright.notify.webhook import WebhookSender, load_key, signature


def message(target: str, channel: str = "webhook", number: int = 1) -> Notification:
    return Notification(
        id=f"msg_{number}", job=7, kind="end", channel=channel, target=target, site=urlsplit(target).netloc or target,
        subject="job 7 (train) has completed",
        body='{"type": "job.end"}', created=T0, due=T0,
    )  # fmt: skip


def sent(state: Path, channels: dict[str, Channel], *found: Notification) -> Outbox:
    box = Outbox(state)
    box.note(SeenJob(job=7), found, T0)
    send_all(box, channels)
    return box


def send_all(box: Outbox, channels: dict[str, Channel], now: int = T0) -> None:
    sender = Sender(box, channels, lambda: now)
    end = time.monotonic() + 20
    sender.step()
    while not sender.is_idle and time.monotonic() < end:
        time.sleep(0.01)
        sender.step()
    assert sender.is_idle


def state_of(box: Outbox) -> list[tuple[str, int, str]]:
    return [(row[0], row[1], row[2]) for row in box._db.execute("select done, tries, error from message order by id")]


def test_a_webhook_is_signed_as_its_receiver_can_verify(tmp_path: Path) -> None:
    key = load_key(tmp_path)
    assert (tmp_path / "webhook.key").stat().st_mode & 0o777 == 0o600 and load_key(tmp_path) == key
    with receiver() as (hook, url):
        box = sent(tmp_path, {"webhook": WebhookSender(key, True).send}, message(url))
    ((headers, body),) = hook.got
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    # By hand, as any library of the specification does it: with the key as it stands in the file.
    shared = base64.b64decode((tmp_path / "webhook.key").read_text().strip().removeprefix("whsec_"))
    mac = base64.b64encode(hmac.new(shared, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{mac}" and headers["webhook-id"] == "msg_1"
    assert json.loads(body) == {"type": "job.end"} and state_of(box) == [("sent", 1, "")]


def test_the_specifications_own_example_has_its_signature() -> None:
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, '{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_what_is_not_accepted_is_tried_again_under_the_same_id_and_given_up_after_a_day(tmp_path: Path) -> None:
    with receiver() as (hook, url):
        hook.answers, hook.headers = [503, 500], {"retry-after": "90"}
        ways = {"webhook": WebhookSender(load_key(tmp_path), True).send}
        box = sent(tmp_path, ways, message(url))
        ((done, tries, error),) = state_of(box)
        assert (done, tries) == ("", 1) and "503" in error
        assert not box.due(T0 + 89 * SECOND, 9) and box.due(T0 + 90 * SECOND, 9), "as the receiver asked"
        send_all(box, ways, T0 + 90 * SECOND)
        send_all(box, ways, T0 + HOUR)
        assert state_of(box) == [("sent", 3, "")]
        assert len({headers["webhook-id"] for headers, _ in hook.got}) == 1
        hook.answers = [500]
        box.note(SeenJob(job=7), [message(url, number=2)], T0)
        send_all(box, ways, T0 + DAY + SECOND)
        assert state_of(box)[1][0] == "given up"
        hook.answers = [410]
        box.note(SeenJob(job=7), [message(url, number=3)], T0)
        send_all(box, ways)
        assert state_of(box)[2][:2] == ("given up", 1)


def test_many_messages_to_a_dead_receiver_do_not_keep_others_waiting(tmp_path: Path) -> None:
    with socket.socket() as dead, receiver() as (hook, url):
        dead.bind(("127.0.0.1", 0))
        lost = f"http://127.0.0.1:{dead.getsockname()[1]}/"
        many = [message(lost, number=number) for number in range(50)]
        box = Outbox(tmp_path)
        box.note(SeenJob(job=7), [*many, message(url, number=999)], T0)
        sender = Sender(box, {"webhook": WebhookSender(b"k", True).send}, lambda: T0)
        sender.step()
        while not hook.got:
            time.sleep(0.01)
        sender.step()
        assert [headers["webhook-id"] for headers, _ in hook.got] == ["msg_999"]


def test_a_redirect_is_not_followed_and_this_machine_is_out_of_bounds_for_strangers(tmp_path: Path) -> None:
    with receiver() as (inner, inside), receiver() as (hook, url):
        hook.answers, hook.headers = [302], {"location": inside}
        box = sent(tmp_path, {"webhook": WebhookSender(b"k", True).send}, message(url))
        assert "302" in state_of(box)[0][2] and not inner.got
        for number, host in enumerate(
            ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "0.0.0.0")
        ):
            other = tmp_path / str(number)
            other.mkdir()
            port = url.split(":")[2].partition("/")[0]
            box = sent(other, {"webhook": WebhookSender(b"k", False).send}, message(f"http://{host}:{port}/"))
            assert state_of(box)[0][0] == "given up", state_of(box)
        assert len(hook.got) == 1


@contextmanager
def trickling(first: bytes) -> Iterator[int]:
    """A server that sends a byte now and then, and never says anything whole; its port."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(first)
                while not stop.wait(0.05):
                    try:
                        peer.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        yield server.getsockname()[1]
        stop.set()
        thread.join()


def test_a_receiver_that_trickles_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "MOST_S", 0.3)
    with trickling(b"HTTP/1.1 2") as port:
        ways = {"webhook": WebhookSender(b"k", True).send}
        box = sent(tmp_path, ways, message(f"http://127.0.0.1:{port}/"))
    assert state_of(box)[0][:2] == ("", 1)


@pytest.mark.parametrize(
    "address",
    ["::1", "::ffff:127.0.0.1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "fd00:ec2::254", "100.100.100.200", "fe80::1"],
)
def test_addresses_that_stand_for_this_machine_or_for_a_clouds_secrets_are_out_of_bounds(address: str) -> None:
    assert WebhookSender(b"k", False)._forbidden(address, set())
    assert WebhookSender(b"k", False)._forbidden("192.0.2.7", {"192.0.2.7"}), "another address of this machine"
    assert not WebhookSender(b"k", True)._forbidden("::1", set())


def test_a_key_that_is_none_is_refused_not_used(tmp_path: Path) -> None:
    for content in ("", "whsec_", "whsec_c2hvcnQ=", "whsec_?"):
        (tmp_path / "webhook.key").write_text(content)
        with pytest.raises(UsageError, match="holds no key"):
            load_key(tmp_path)


def test_an_array_that_takes_longer_than_what_is_kept_still_ends(tmp_path: Path) -> None:
    box = Outbox(tmp_path)
    box.note(SeenJob(job=1, group="1", size=2, began=True, state="failed"), (), T0)
    box.note(SeenJob(job=2, group="1", size=2, began=True, state="running"), (), T0)
    box.note(SeenJob(job=9, state="completed"), (), T0)
    box.forget(T0 + 30 * DAY)
    assert box.members("1", 2).final == box.members("1", 2).failed == 1 and box.seen(9) is None
    box.note(SeenJob(job=2, group="1", size=2, began=True, state="completed"), (), T0 + 30 * DAY)
    box.forget(T0 + 60 * DAY)
    assert box.seen(1) is None and box.seen(2) is None


def test_many_urls_of_one_slow_site_take_one_thread(tmp_path: Path) -> None:
    begun: list[str] = []
    go = threading.Event()

    def slow(message: Notification) -> None:
        begun.append(message.target)
        go.wait(20)

    box = Outbox(tmp_path)
    box.note(SeenJob(job=7), [message(f"http://tar.pit/?{number}", number=number) for number in range(200)], T0)
    box.note(SeenJob(job=8), [message("bob@x.org", "mail", 999)], T0)
    sender = Sender(box, {"webhook": slow, "mail": slow}, lambda: T0)
    sender.step()
    while len(begun) < 2:
        time.sleep(0.01)
    assert sorted(begun) == ["bob@x.org", "http://tar.pit/?0"]
    assert shown(message("https://hooks.x.org?token=SECRET")) == "hooks.x.org"
    go.set()


def test_a_mail_arrives_with_what_a_reader_needs(tmp_path: Path) -> None:
    (found,) = messages("fail", reply(state="failed", exit_code=3, why="exit code 3", start=T0), T0)
    with mail_server() as (mails, url):
        box = sent(tmp_path, {"mail": Mailer(parse_smtp(url), "tide@pool", "example.org", "").send}, found)
    (letter,) = mails.letters
    assert (letter["To"], letter["From"]) == ("ann@example.org", "tide@pool")
    assert letter["Subject"] == "[tide] job 7 (train) has failed" and letter["Auto-Submitted"] == "auto-generated"
    text = letter.get_payload()
    assert "exit code 3" in text and "tide show 7" in text and state_of(box) == [("sent", 1, "")]


def test_an_address_that_the_server_refuses_is_given_up_and_a_busy_server_asked_again(tmp_path: Path) -> None:
    with mail_server() as (mails, url):
        ways: dict[str, Channel] = {"mail": Mailer(parse_smtp(url), "tide@pool", "", "").send}
        mails.refuse = ["550 no such user"]
        assert state_of(sent(tmp_path, ways, message("bob@x.org", "mail")))[0][0] == "given up"
        mails.refuse = ["451 later"]
        other = tmp_path / "other"
        other.mkdir()
        box = sent(other, ways, message("bob@x.org", "mail"))
        assert state_of(box)[0][:2] == ("", 1)
        send_all(box, ways, T0 + HOUR)
        assert state_of(box)[0][:2] == ("sent", 2) and len(mails.letters) == 1


def test_a_mail_that_was_taken_is_sent_whatever_the_server_says_to_quit(tmp_path: Path) -> None:
    with mail_server() as (mails, url):
        mails.farewell = "421 too busy"
        ways: dict[str, Channel] = {"mail": Mailer(parse_smtp(url), "tide@pool", "", "").send}
        box = sent(tmp_path, ways, message("bob@x.org", "mail"))
        send_all(box, ways, T0 + HOUR)
        assert len(mails.letters) == 1 and state_of(box) == [("sent", 1, "")]


def test_a_mail_server_that_trickles_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "MOST_S", 0.3)
    with trickling(b"220-") as port:
        ways: dict[str, Channel] = {"mail": Mailer(parse_smtp(f"smtp://127.0.0.1:{port}"), "tide@pool", "", "").send}
        box = sent(tmp_path, ways, message("bob@x.org", "mail"))
    assert state_of(box)[0][:2] == ("", 1)


def test_nothing_goes_to_a_server_elsewhere_in_clear_nor_a_password_that_others_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse_smtp("smtp://[::1]").is_local and not parse_smtp("smtp://127.0.0.1.nip.io").is_local
    monkeypatch.setattr(SmtpServer, "is_local", False)
    with mail_server() as (mails, url):
        far = parse_smtp(url)
        box = sent(tmp_path, {"mail": Mailer(far, "tide@pool", "", "").send}, message("bob@x.org", "mail"))
        assert "no TLS" in state_of(box)[0][2] and not mails.letters
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    secret.chmod(0o644)
    with pytest.raises(UsageError, match="others can read"):
        read_password(str(secret))
    secret.chmod(0o600)
    assert read_password(str(secret)) == "hunter2" and completed("ann", "x.org") == "ann@x.org"
    for wrong in ("mail.x.org", "http://x", "smtp://", "smtp://u:p@x", "smtp://x:99999", "smtp://x/path"):
        with pytest.raises(UsageError):
            parse_smtp(wrong)


def test_news_and_messages_are_kept_or_lost_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Outbox(tmp_path)
    box.note(SeenJob(job=7, state="running"), [message("http://a/", number=1)], T0)
    with pytest.raises(Exception, match="UNIQUE"):
        box.note(SeenJob(job=7, state="failed"), [message("http://a/", number=2), message("http://a/", number=1)], T0)
    box.close()
    again = Outbox(tmp_path)
    assert again.seen(7) == SeenJob(job=7, state="running") and len(state_of(again)) == 1 and again.unfinished() == [7]
    again.passed("12.3")
    monkeypatch.setattr(outbox, "MOST_PENDING", 3)
    dropped = again.note(SeenJob(job=8), [message("http://a/", number=number) for number in range(5, 10)], T0)
    assert dropped == 3 and len(again.due(T0, 100)) == 1 and again.cursor == "12.3"
    again.forget(T0 + 30 * DAY)
    assert [done for done, _, _ in state_of(again)] == ["", "", ""], "what waits is kept"
    assert (tmp_path / "notify.db").stat().st_mode & 0o077 == 0


def test_targets_are_checked_and_paths_of_webhooks_hidden() -> None:
    bad = Notify(
        ("end", "lunch"), ("a b@c",), ("ftp://x/", "http://", "https://u:p@x/", "http://x:0/", "http://[/", "x" * 600)
    )
    assert len(wrong_notify(bad)) == 8
    good = Notify(("end",), ("ann", "ann@x.org"), ("https://hooks.x.org/T/secret",))
    assert not wrong_notify(good) and wrong_notify(Notify(("end",), ("ann",) * 11))
    shown = hide_targets(good)
    assert shown is not None and shown.webhooks == ("https://hooks.x.org/...",) and shown.mail == good.mail


def test_the_bound_on_an_exchange_ends_with_it() -> None:
    one, other = socket.socketpair()
    with closing.closed_after(lambda: one, 0.05):
        time.sleep(0.01)
    time.sleep(0.1)
    one.send(b"x")
    assert other.recv(1) == b"x"
    one.close()
    other.close()
