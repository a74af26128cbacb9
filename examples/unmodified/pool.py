"""A population of small models evolved by a multiprocessing.Pool.

python pool.py --steps 40
"""

import argparse
import multiprocessing
import random

import numpy as np
from digest import Digest, seed_all


def fitness(task):
    """Error of one genome on random data drawn from its seed."""
    seed, genome = task
    x = np.random.default_rng(seed).standard_normal((400, genome.size))
    hidden = np.tanh(x * genome)
    for _ in range(10):
        hidden = np.tanh(hidden @ np.outer(genome, genome) / genome.size + x)
    return float(((hidden.sum(1) - np.abs(x).sum(1)) ** 2).mean())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--population", type=int, default=12)
    parser.add_argument("--start-method", choices=("fork", "spawn", "forkserver"), default=None)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    genomes = [np.random.standard_normal(48) for _ in range(args.population)]
    digest = Digest()
    with multiprocessing.get_context(args.start_method).Pool(args.processes) as pool:
        for step in range(args.steps):
            tasks = [(1000 * step + i, genome) for i, genome in enumerate(genomes)]
            scores = pool.map(fitness, tasks, chunksize=2)
            order = sorted(range(len(genomes)), key=scores.__getitem__)
            best = [genomes[i] for i in order[: len(order) // 2]]
            children = [
                random.choice(best) + 0.05 * np.random.standard_normal(48) for _ in range(len(genomes) - len(best))
            ]
            genomes = best + children
            digest.step(scores[order[0]])

    digest.finish(genomes)


if __name__ == "__main__":
    main()
