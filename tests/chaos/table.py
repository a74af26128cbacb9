"""A numpy program that keeps a CSV file open, and whose digest covers what is in it in the end.

python table.py --steps 500
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "unmodified"))
from digest import Digest, seed_all


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps
    seed_all(0)
    weights = np.zeros(256)
    digest = Digest()
    with open("table.csv", "w", newline="") as file:
        rows = csv.writer(file)
        for step in range(steps):
            x = np.random.standard_normal((600, 256))
            error = x @ weights - np.sin(x).sum(1)
            weights -= 0.05 * x.T @ error / len(x)
            rows.writerow([step, float((error**2).mean()).hex()])
            if step % 7 == 0:
                file.flush()
            digest.step((error**2).mean())
    digest.finish(weights, Path("table.csv").read_text())


if __name__ == "__main__":
    main()
