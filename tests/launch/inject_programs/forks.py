"""DDP whose ranks fork again and again, with descriptors of the program's own that every child must still have.

Each child writes down the sockets it has beyond those, which torch alone would have left it.
"""

import os
import random
import select
import socket
import subprocess
import sys
import threading

import numpy
import torch
import torch.distributed as dist
from ending import report

torch.set_num_threads(1)
steps = int(sys.argv[1])
kept = []


def sockets():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return {name for name in found if name.startswith("socket:")}


def open_some():
    """A connection over TCP, and an epoll instance that watches its end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    watched = select.epoll()
    watched.register(far, select.EPOLLIN)
    return near, far, watched


def keep_opening(done):
    """What another thread of a program does while a group is made."""
    while not done.wait(0.001):
        made = open_some()
        if len(kept) < 20:
            kept.append(made)
        else:
            for each in made:
                each.close()


def use(near, far, watched):
    """Whether all still works."""
    near.send(b"x")
    return watched.poll(10) == [(far.fileno(), select.EPOLLIN)] and far.recv(1) == b"x"


def connection(name):
    """The kernel's line of a socket, for a failure."""
    with open("/proc/net/tcp") as file:
        return [line.split()[1:4] for line in file if f" {name[8:-1]} " in line]


def child(path):
    code = 1
    try:
        mine = {f"socket:[{os.fstat(end.fileno()).st_ino}]" for near, far, _ in kept for end in (near, far)}
        held = sockets()
        assert mine <= held
        assert all(use(*each) for each in kept)
        with open(path, "a") as file:
            file.write(f"{len(held - mine)} {[connection(name) for name in held - mine]}\n")
        code = 0
    finally:
        os._exit(code)


def fork(path):
    pid = os.fork()
    if pid == 0:
        child(path)
    assert os.waitpid(pid, 0)[1] == 0


def start(path):
    """A program that inherits whatever is not closed at exec(2). Python's own sockets are."""
    counting = subprocess.run("ls -l /proc/self/fd | grep -c socket:", shell=True, close_fds=False, stdout=-1)
    with open(path, "a") as file:
        file.write(f"{int(counting.stdout)}\n")


done = threading.Event()
opening = threading.Thread(target=keep_opening, args=(done,))
opening.start()
dist.init_process_group("gloo")
half = dist.new_group([0, 1])
done.set()
opening.join()
rank = dist.get_rank()
path = os.environ["OUT"] + f".children.{rank}"
torch.manual_seed(1)
random.seed(1)
numpy.random.seed(1)
model = torch.nn.Linear(32, 32)
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(100 + rank)
losses = []
for step in range(steps):
    fork(path)
    loss = ddp(torch.randn(16, 32)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    if step % 10 == 0:
        dist.barrier(group=half)
start(path)
dist.destroy_process_group(half)
fork(path)
report(model, optimizer, losses)
dist.barrier()
dist.destroy_process_group()
