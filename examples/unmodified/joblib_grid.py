"""scikit-learn's GridSearchCV on two worker processes of joblib (loky: semaphores, pipes and a resource tracker).

python joblib_grid.py --steps 12
"""

import argparse

import numpy as np
from digest import Digest, seed_all
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    digest = Digest()
    for step in range(args.steps):
        x, y = make_classification(600, 20, n_informative=10, random_state=step)
        grid = {"max_depth": (2, 4), "n_estimators": (10, 20)}
        search = GridSearchCV(RandomForestClassifier(random_state=np.random.randint(1 << 30)), grid, n_jobs=2, cv=3)
        digest.step(search.fit(x, y).best_score_)
    digest.finish(search.cv_results_["mean_test_score"])


if __name__ == "__main__":
    main()
