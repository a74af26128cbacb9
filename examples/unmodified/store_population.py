"""A population that trains apart: every rank climbs on its own, and tells the others how far it is through torch's store.

Nothing but the store connects the ranks. Each leaves its score, counts itself in, and every tenth step takes over the
weights of whoever is best.

    torchrun --nproc-per-node 2 store_population.py --steps 200
"""

import argparse
import datetime
import os
import random

import torch
import torch.distributed as dist
from digest import Digest, seed_all


class Population:
    """What all ranks know of each other, turn by turn."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(*place, world, rank == 0, timeout=datetime.timedelta(seconds=120))
        self.turn = 0

    def scores(self, mine):
        """Everybody's, by rank; how many were counted in says whether one was lost or came twice."""
        self.turn += 1
        self.store.add(f"{self.turn}/there", 1)
        self.store.set(f"{self.turn}/{self.rank}", mine.hex())
        found = [float.fromhex(self.store.get(f"{self.turn}/{rank}").decode()) for rank in range(self.world)]
        there = self.store.add(f"{self.turn}/there", 0)
        if there != self.world:
            raise SystemExit(f"turn {self.turn}: {there} of {self.world} ranks were there")
        return found

    def weights_of(self, best, mine):
        """The weights of the best rank, which alone has anything to tell."""
        key = f"{self.turn}/weights"
        if self.rank == best:
            self.store.set(key, ",".join(value.hex() for value in mine.tolist()))
        return torch.tensor([float.fromhex(value) for value in self.store.get(key).decode().split(",")])

    def leave(self):
        """Rank 0 serves the store, so it is the last to go."""
        self.store.set(f"left/{self.rank}", "")
        if self.rank == 0:
            self.store.wait([f"left/{rank}" for rank in range(self.world)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    seed_all(args.seed + rank)
    population = Population(rank, world)
    target = torch.linspace(-1, 1, 64)
    weights, digest = torch.zeros(64), Digest(rank)
    for step in range(1, args.steps + 1):
        for _ in range(40):
            trial = weights + torch.randn(64) * 0.05 * random.random()
            if ((trial - target) ** 2).sum() < ((weights - target) ** 2).sum():
                weights = trial
        scores = population.scores(float(((weights - target) ** 2).sum()))
        if step % 10 == 0:
            weights = population.weights_of(scores.index(min(scores)), weights)
        digest.step(scores[rank])
    population.leave()
    digest.finish(weights, scores)


if __name__ == "__main__":
    main()
