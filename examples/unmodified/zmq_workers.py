"""A parameter server over ZeroMQ: worker processes and threads fetch weights and push gradients, all over TCP on loopback.

python zmq_workers.py --steps 100
"""

import argparse
import multiprocessing
import threading

import numpy as np
import zmq
from digest import Digest, seed_all


def work(address, rank, width):
    """Answer every set of weights with the gradient on data of one's own."""
    draw = np.random.default_rng(rank)
    socket = zmq.Context().socket(zmq.DEALER)
    socket.identity = str(rank).encode()
    socket.connect(address)
    socket.send(b"here")
    while weights := socket.recv():
        x = draw.standard_normal((200, width))
        error = x @ np.frombuffer(weights) - x[:, :3].sum(1)
        socket.send((x.T @ error / len(x)).tobytes())
    socket.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    router = zmq.Context().socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    where = f"tcp://127.0.0.1:{port}"
    spawn, count = multiprocessing.get_context("spawn"), args.processes + args.threads
    workers = [spawn.Process(target=work, args=(where, rank, args.width)) for rank in range(args.processes)]
    workers += [threading.Thread(target=work, args=(where, rank, args.width)) for rank in range(args.processes, count)]
    for worker in workers:
        worker.start()
    names = sorted(router.recv_multipart()[0] for _ in workers)

    weights, digest = np.random.standard_normal(args.width), Digest()
    for _ in range(args.steps):
        for name in names:
            router.send_multipart([name, weights.tobytes()])
        found = dict(router.recv_multipart() for _ in names)
        gradient = sum(np.frombuffer(found[name]) for name in names) / count
        weights = weights - 0.05 * gradient
        digest.step((gradient**2).sum())
    for name in names:
        router.send_multipart([name, b""])
    for worker in workers:
        worker.join()
    digest.finish(weights)


if __name__ == "__main__":
    main()
