"""XGBoost: boosted trees by histograms, on two OpenMP threads.

python xgboost_fit.py --steps 200
"""

import argparse

import numpy as np
import xgboost
from digest import Digest, seed_all


class Reporter(xgboost.callback.TrainingCallback):
    """A line for each round."""

    def __init__(self, digest):
        super().__init__()
        self.digest = digest

    def after_iteration(self, model, epoch, evals_log):
        self.digest.step(evals_log["train"]["logloss"][-1])
        return False


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
        "objective": "binary:logistic", "eval_metric": "logloss", "max_depth": 6, "subsample": 0.7, "tree_method": "hist",
        "seed": args.seed, "nthread": 2,
    }  # fmt: skip
    digest, data = Digest(), xgboost.DMatrix(x, y)
    model = xgboost.train(
        settings, data, args.steps, evals=[(data, "train")], verbose_eval=False, callbacks=[Reporter(digest)]
    )
    digest.finish(bytes(model.save_raw("json")), model.predict(data)[:200])


if __name__ == "__main__":
    main()
