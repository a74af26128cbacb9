"""LightGBM: boosted trees on two OpenMP threads.

python lightgbm_fit.py --steps 200
"""

import argparse

import lightgbm
import numpy as np
from digest import Digest, seed_all


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    dice = np.random.default_rng(args.seed)
    x = dice.standard_normal((4000, 20))
    y = (x[:, :5].sum(1) + np.sin(3 * x[:, 5]) > 0).astype(int)
    settings = {
        "objective": "binary", "metric": "binary_logloss", "num_leaves": 31, "bagging_fraction": 0.7, "bagging_freq": 1,
        "seed": args.seed, "deterministic": True, "force_row_wise": True, "num_threads": 2, "verbosity": -1,
    }  # fmt: skip
    digest = Digest()

    def report(state):
        digest.step(state.evaluation_result_list[0][2])

    data = lightgbm.Dataset(x, y)
    model = lightgbm.train(settings, data, args.steps, valid_sets=[data], callbacks=[report])
    digest.finish(model.model_to_string(), model.predict(x[:200]))


if __name__ == "__main__":
    main()
