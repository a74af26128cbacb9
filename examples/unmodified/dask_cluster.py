"""A dask LocalCluster: a scheduler, two worker processes and a client, which talk TCP on loopback.

python dask_cluster.py --steps 60
"""

import argparse

import numpy as np
from dask.distributed import Client, LocalCluster
from digest import Digest, seed_all


def gradient(seed, weights):
    """On data drawn from its seed."""
    x = np.random.default_rng(seed).standard_normal((500, weights.size))
    return x.T @ (x @ weights - x[:, :3].sum(1)) / len(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parts", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    weights, digest = np.random.standard_normal(64), Digest()
    with (
        LocalCluster(n_workers=args.workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for step in range(args.steps):
            seeds = [args.parts * step + part for part in range(args.parts)]
            found = client.gather(client.map(gradient, seeds, weights=weights, pure=False))
            weights = weights - 0.05 * sum(found) / len(found)
            digest.step((sum(found) ** 2).sum())
    digest.finish(weights)


if __name__ == "__main__":
    main()
