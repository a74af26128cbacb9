"""scikit-learn: an online classifier and a boosted forest that grows by warm start.

python sklearn_fit.py --steps 60
"""

import argparse

import numpy as np
from digest import Digest, seed_all
from sklearn.datasets import make_classification
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    x, y = make_classification(3000, 20, n_informative=12, n_classes=3, random_state=args.seed)
    x = StandardScaler().fit_transform(x)
    online = SGDClassifier(loss="log_loss", alpha=1e-4, average=True, random_state=None)
    forest = GradientBoostingClassifier(n_estimators=1, subsample=0.5, max_depth=3, warm_start=True, random_state=None)
    digest = Digest()
    for step in range(args.steps):
        rows = np.random.permutation(len(x))[:500]
        online.partial_fit(x[rows], y[rows], classes=[0, 1, 2])
        if step % 5 == 0:
            forest.set_params(n_estimators=1 + step // 5)
            forest.fit(x[:1000], y[:1000])
        digest.step(log_loss(y, online.predict_proba(x)) + log_loss(y, forest.predict_proba(x)))

    digest.finish(online.coef_, online.intercept_, online.t_, forest.train_score_, forest.predict_proba(x[:100]))


if __name__ == "__main__":
    main()
