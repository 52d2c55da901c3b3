"""Writes tests/fixtures/optimizers.json: the results of PyTorch's optimizers for given gradients, and of Lion by its paper.

  python3 tests/peers/optimizer_fixture.py > tests/fixtures/optimizers.json

PyTorch has no Lion; here it is algorithm 2 of Chen et al. 2023 in f64, one line for each of its lines.
"""
import json

import torch

torch.manual_seed(5)
COUNT, STEPS, LR = 13, 5, 0.05
weights = torch.randn(COUNT)
gradients = [torch.randn(COUNT) * 10.0 ** torch.randint(-3, 2, (COUNT,)) for _ in range(STEPS)]
cases = []


def case(rule, constants, moved):
    cases.append({
        "rule": rule, "lr": LR, **constants, "weights": weights.tolist(), "gradients": [g.tolist() for g in gradients],
        "after": moved,
    })


for momentum, decay in [(0.0, 0.0), (0.9, 0.0), (0.9, 0.1), (0.0, 0.1)]:
    w = weights.clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=LR, momentum=momentum, weight_decay=decay)
    after = []
    for g in gradients:
        w.grad = g.clone()
        optimizer.step()
        after.append(w.tolist())
    case("sgd", {"momentum": momentum, "weight_decay": decay}, after)

for beta1, beta2, decay in [(0.9, 0.99, 0.0), (0.95, 0.98, 0.1)]:
    w, m, after = weights.double(), torch.zeros(COUNT).double(), []
    for g in gradients:
        update = torch.sign(beta1 * m + (1 - beta1) * g.double())
        w = w - LR * (update + decay * w)
        m = beta2 * m + (1 - beta2) * g.double()
        after.append(w.tolist())
    case("lion", {"beta1": beta1, "beta2": beta2, "weight_decay": decay}, after)

print(json.dumps({"torch": torch.__version__, "cases": cases}, indent=1))
