"""Threads and a forked process that hand numbers around a ring of TCP connections over loopback.

python tcp_pairs.py --steps 300
"""

import argparse
import os
import random
import socket
import struct
import threading

from digest import Digest, seed_all

WORD = struct.Struct("<d")


def pair():
    """Both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


def receive(connection, size):
    """Exactly so many bytes; fewer once the other end is closed."""
    found = b""
    while len(found) < size and (more := connection.recv(size - len(found))):
        found += more
    return found


def relay(source, target, weight):
    """Pass every number on, mixed with what came before it."""
    state = 0.0
    while word := receive(source, WORD.size):
        state = 0.9 * state + weight * WORD.unpack(word)[0]
        target.sendall(WORD.pack(state))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--relays", type=int, default=3, help="threads between the sender and the process")
    parser.add_argument("--words", type=int, default=40, help="numbers under way at a time")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    links = [pair() for _ in range(args.relays + 2)]
    if (child := os.fork()) == 0:
        for near, far in links:
            if far is not links[-2][1]:
                far.close()
            if near is not links[-1][0]:
                near.close()
        relay(links[-2][1], links[-1][0], 0.5)
        os._exit(0)
    links[-2][1].close()
    links[-1][0].close()
    for number in range(args.relays):
        where = (links[number][1], links[number + 1][0], 1.0 + 0.1 * number)
        threading.Thread(target=relay, args=where, daemon=True).start()
    digest = Digest()
    for _ in range(args.steps):
        for _ in range(args.words):
            links[0][0].sendall(WORD.pack(random.gauss(0, 1)))
        total = sum(WORD.unpack(receive(links[-1][1], WORD.size))[0] for _ in range(args.words))
        digest.step(total)
    links[0][0].close()
    links[-2][0].shutdown(socket.SHUT_RDWR)
    os.waitpid(child, 0)
    digest.finish()


if __name__ == "__main__":
    main()
