"""CatBoost: boosted trees on two threads of its own pool; it says what it does through a callback.

python catboost_fit.py --steps 200
"""

import argparse

import catboost
import numpy as np
from digest import Digest, seed_all


class Reporter:
    """A line for each tree."""

    def __init__(self, digest):
        self.digest = digest

    def after_iteration(self, info):
        self.digest.step(info.metrics["learn"]["Logloss"][-1])
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    dice = np.random.default_rng(args.seed)
    x = dice.standard_normal((3000, 20))
    y = (x[:, :5].sum(1) + np.sin(3 * x[:, 5]) > 0).astype(int)
    model = catboost.CatBoostClassifier(
        iterations=args.steps, thread_count=2, random_seed=args.seed, verbose=False, allow_writing_files=False
    )
    digest = Digest()
    model.fit(x, y, callbacks=[Reporter(digest)])
    digest.finish(model.predict_proba(x[:200]))


if __name__ == "__main__":
    main()
