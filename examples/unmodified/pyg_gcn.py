"""PyTorch Geometric: a graph convolution network on a made-up citation graph.

python pyg_gcn.py --steps 200
"""

import argparse

import torch
from digest import Digest, seed_all
from torch.nn import functional
from torch_geometric.nn import GCNConv
from torch_geometric.utils import erdos_renyi_graph


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(64, 64), GCNConv(64, 7)

    def forward(self, x, edges):
        return self.second(functional.dropout(functional.relu(self.first(x, edges)), 0.5, self.training), edges)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    edges = erdos_renyi_graph(1500, 0.004)
    x, y = torch.randn(1500, 64), torch.randint(0, 7, (1500,))
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=5e-4)
    digest = Digest()
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(x, edges), y)
        loss.backward()
        optimizer.step()
        digest.step(loss.item())
    digest.finish(network.state_dict(), optimizer.state_dict())


if __name__ == "__main__":
    main()
