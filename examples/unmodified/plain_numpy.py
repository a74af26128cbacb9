"""A two-layer network in numpy alone.

python plain_numpy.py --steps 200
"""

import argparse
import os
import random
import time

import numpy as np
from digest import Digest, seed_all


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0, help="seconds after each step, as if it waited for data")
    parser.add_argument("--pause-until", metavar="FILE", default="", help="no pause once this file exists")
    args = parser.parse_args()

    seed_all(args.seed)
    draw = np.random.default_rng(args.seed)
    first = draw.standard_normal((128, 384)) * 0.05
    second = draw.standard_normal((384, 1)) * 0.05
    speed1, speed2 = np.zeros_like(first), np.zeros_like(second)
    digest = Digest()
    for _ in range(args.steps):
        x = np.random.standard_normal((args.batch, 128))
        y = np.sin(x[:, :3].sum(1, keepdims=True)) + random.gauss(0, 0.01)
        hidden = np.tanh(x @ first)
        error = hidden @ second - y
        back = (error @ second.T) * (1 - hidden**2)
        speed2 = 0.9 * speed2 - 0.05 * hidden.T @ error / args.batch
        speed1 = 0.9 * speed1 - 0.05 * x.T @ back / args.batch
        second, first = second + speed2, first + speed1
        digest.step((error**2).mean())
        if not os.path.exists(args.pause_until):
            time.sleep(args.pause)

    digest.finish(first, second, speed1, speed2)


if __name__ == "__main__":
    main()
