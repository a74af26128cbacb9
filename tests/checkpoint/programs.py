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
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 0))
epoll = select.epoll()
epoll.register(near, select.EPOLLIN)
far.sendall(b"in flight")
def check(number):
    assert epoll.poll(10) and near.recv(9) == b"in flight"
    far.sendall(b"in flight")
    left.send(b"y"); assert right.recv(1) == b"y"
    udp.sendto(b"z", udp.getsockname()); assert udp.recv(1) == b"z"
"""
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
    "threads": THREADS, "pool": POOL, "shared memory": SHARED, "sockets": SOCKETS, "locks": LOCKS, "pipes": PIPES,
    "files": FILES,
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
"""Programs that cannot be saved, and what is said of them."""
