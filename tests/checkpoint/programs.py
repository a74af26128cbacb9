"""Small programs that hold on to something of the kernel's, and print a line per round in which all of it still works."""

from __future__ import annotations

THREADS = """
import threading, queue, hashlib
inbox, outbox = queue.Queue(), queue.Queue()
def work():
    while True:
        outbox.put(hashlib.sha256(inbox.get()).digest())
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
def check(number):
    inbox.put(b"x")
    assert outbox.get(timeout=30)
"""
POOL = """
import multiprocessing
def square(x):
    return x * x
pool = multiprocessing.get_context("fork").Pool(2)
def check(number):
    assert pool.map(square, range(4)) == [0, 1, 4, 9]
"""
SHARED = """
import multiprocessing.shared_memory as shared, mmap, os
named = shared.SharedMemory(create=True, size=8192)
path = "/dev/shm/unlinked-%d" % os.getpid()
handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(handle, 3 << 20)
unlinked = mmap.mmap(handle, 3 << 20)
os.unlink(path)
memfd = os.memfd_create("x")
os.write(memfd, b"memfd")
anonymous = mmap.mmap(-1, 4096)
count = 0
def check(number):
    global count
    for memory in (named.buf, unlinked, anonymous):
        assert int.from_bytes(memory[:8], "little") == count
        memory[:8] = (count + 1).to_bytes(8, "little")
    count += 1
    assert os.pread(memfd, 5, 0) == b"memfd"
"""
SOCKETS = """
import select, socket, threading
listening = socket.create_server(("0.0.0.0", 0))
far = socket.create_connection(("127.0.0.1", listening.getsockname()[1]))
near, _ = listening.accept()
left, right = socket.socketpair()
epoll = select.epoll()
epoll.register(near, select.EPOLLIN)
far.sendall(b"in flight")
def check(number):
    assert epoll.poll(10) and near.recv(9) == b"in flight"
    far.sendall(b"in flight")
    left.send(b"y"); assert right.recv(1) == b"y"
"""
DATAGRAMS = """
import socket
def udp(address="127.0.0.1"):
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, 0))
    made.settimeout(0.5)
    return made
alone, everywhere, left, right, asking = udp(), udp("0.0.0.0"), udp(), udp(), udp()
left.connect(right.getsockname()); right.connect(left.getsockname()); asking.connect(alone.getsockname())
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)
raw.settimeout(0.5)
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
packets.bind(("lo", 0))
names = [each.getsockname() for each in (alone, everywhere, left, right, asking, raw, packets)]
def heard(send, listener):
    for _ in range(20):
        send()
        try:
            return listener.recv(99)
        except TimeoutError:
            pass
    raise AssertionError("nothing was heard in twenty times")
def check(number):
    assert heard(lambda: asking.send(b"one way"), alone) == b"one way"
    assert heard(lambda: asking.sendto(b"all", ("127.0.0.1", everywhere.getsockname()[1])), everywhere) == b"all"
    assert heard(lambda: left.send(b"pair"), right) == b"pair"
    assert heard(lambda: raw.sendto(b"raw", ("127.0.0.1", 0)), raw)[20:] == b"raw"
    assert names == [each.getsockname() for each in (alone, everywhere, left, right, asking, raw, packets)]
"""
"""What waits in a UDP or raw socket is no part of an image: as on any network, who hears no answer asks again."""
LOCKS = """
import fcntl, os, subprocess
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
other = open("other-lock", "w")
fcntl.lockf(other, fcntl.LOCK_EX)
def check(number):
    if number % 50 == 0:
        assert subprocess.run(["flock", "-n", "lock", "true"]).returncode == 1, "the lock is lost"
"""
PIPES = """
import os, subprocess, signal, time
cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
reading, writing = os.pipe()
os.write(writing, b"p")
alarms = []
signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
event = getattr(os, "eventfd", lambda *_: None)(0)
start = time.monotonic()
def check(number):
    global start
    cat.stdin.write(b"line\\n"); cat.stdin.flush()
    assert cat.stdout.readline() == b"line\\n"
    assert os.read(reading, 1) == b"p"; os.write(writing, b"p")
    now = time.monotonic()
    assert 0 <= now - start < 5, now - start
    start = now
"""
FILES = """
import os
log, data = open("own.log", "a"), open("own.data", "w+b")
data.write(bytes(4096))
csv = open("own.csv", "w")
gone = open("gone", "w+b"); gone.write(b"still here"); gone.flush(); os.unlink("gone")
script = open("read-only"); script.readline()
def check(number):
    log.write("%d\\n" % number); log.flush()
    csv.write("%d,\\n" % number); csv.flush()
    data.seek(0); data.write(number.to_bytes(8, "little")); data.flush()
    gone.seek(0); assert gone.read() == b"still here"
    assert open("own.log").read().split() == [str(i) for i in range(number + 1)]
    assert open("own.csv").read().split() == ["%d," % i for i in range(number + 1)]
"""
GOOD = {
    "threads": THREADS, "pool": POOL, "shared memory": SHARED, "sockets": SOCKETS, "datagrams": DATAGRAMS,
    "locks": LOCKS, "pipes": PIPES, "files": FILES,
}  # fmt: skip
LOOP = """
import time
number = 0
while True:
    check(number)
    print(number, flush=True)
    number += 1
    time.sleep(0.002)
"""

BAD = {
    "io_uring": (
        "import ctypes; assert ctypes.CDLL(None, use_errno=True).syscall(425, 8, (ctypes.c_char * 120)()) > 0",
        "uses io_uring",
    ),
    "a connection elsewhere": (
        "import socket, os; s = socket.create_connection(('127.0.0.1', int(os.environ['ELSEWHERE'])))",
        "has a connection to 127.0.0.1 port",
    ),
    "UDP elsewhere": (
        "import socket, os; s = socket.socket(2, 2); s.connect(('127.0.0.1', int(os.environ['ELSEWHERE'])))",
        "has a UDP connection to 127.0.0.1 port",
    ),
    "UDP to another host": (
        "import socket; s = socket.socket(2, 2); s.setsockopt(1, 25, b'lo'); s.connect(('192.0.2.9', 9))",
        "has a UDP connection to 192.0.2.9 port 9",
    ),
    "UDP on an address of the host": (
        "import socket; s = socket.socket(2, 2); s.setsockopt(0, 15, 1); s.bind(('192.0.2.9', 0))",
        "has bound a UDP socket to 192.0.2.9, which is an address of this host alone",
    ),
    "a group": (
        "import socket; s = socket.socket(2, 2); s.bind(('224.0.0.251', 0))",
        "listens to the group 224.0.0.251",
    ),
    "a raw socket with an address": (
        "import socket; s = socket.socket(2, 3, 253); s.bind(('127.0.0.1', 0))",
        "has tied a socket for raw packets to 127.0.0.1",
    ),
    "a socket of another kind": (
        "import socket; s = socket.socket(2, 1, 262); s.bind(('127.0.0.1', 0)); s.listen()",
        "uses a socket of the kind MPTCP",
    ),
    "System V shared memory": (
        "import ctypes; c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p\n"
        "number = c.shmget(0, 4096, 0o1600); assert c.shmat(number, None, 0) and not c.shmctl(number, 0, None)",
        "uses System V shared memory",
    ),
    "a device": ("f = open('/dev/fuse', 'r+b', buffering=0)", "has opened the device /dev/fuse"),
    "a terminal": ("import os; ends = os.openpty()", "has opened the terminal"),
    "a namespace": ("import ctypes; ctypes.CDLL(None).unshare(0x04000000)", "has made itself a uts namespace"),
    "a daemon": (
        "import os, time\nif os.fork() == 0:\n    if os.fork() == 0:\n        time.sleep(1000)\n    os._exit(0)\nos.wait()",
        "has outlived its parent",
    ),
    "bpf": (
        "import ctypes; assert ctypes.CDLL(None, use_errno=True).syscall(323, 0x80000) > 0",
        "uses userfaultfd",
    ),
}
"""Programs that cannot be saved, and what is said of them. Options by number: 25 takes any address to be reached over an
interface, 15 takes any for the host's own (socket(7), ip(7))."""
