"""h5py: results are appended to an HDF5 file that stays open, chunk by chunk.

python h5py_log.py --steps 400
"""

import argparse

import h5py
import numpy as np
from digest import Digest, seed_all


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    digest, walk = Digest(), np.zeros(256)
    with h5py.File("walk.h5", "w") as file:
        rows = file.create_dataset("walk", (0, 256), maxshape=(None, 256), chunks=(16, 256), compression="gzip")
        for step in range(args.steps):
            for _ in range(200):
                walk = np.tanh(walk + 0.1 * np.random.standard_normal(256))
            rows.resize(step + 1, axis=0)
            rows[step] = walk
            if step % 10 == 0:
                file.flush()
            digest.step(walk.mean())
    with h5py.File("walk.h5", "r") as file:
        digest.finish(file["walk"][:])


if __name__ == "__main__":
    main()
