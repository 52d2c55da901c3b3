"""Writes tests/fixtures/muon.json: torch.optim.Muon's results for matrices after 20 steps with given gradients.

  python3 tests/peers/muon_fixture.py > tests/fixtures/muon.json

Initial weights and gradients are a hash of their index, which the test also computes. PyTorch's momentum is a constant of
a group; here it is set before each step, because capful's rises. PyTorch orthogonalises in bf16.
"""
import json

import torch

STEPS, LR = 20, 0.02


def number(n):
    """Number n of [-0.5, 0.5), by the output function of PCG-RXS-M-XS (O'Neill 2014)."""
    x = (n * 747796405 + 2891336453) % 2**32
    x = ((x >> ((x >> 28) + 4)) ^ x) * 277803737 % 2**32
    return ((x >> 22) ^ x) / 2**32 - 0.5


cases = []
for (rows, columns), decay in [((24, 16), 0.0), ((12, 20), 0.1), ((16, 16), 0.1)]:
    count = rows * columns
    w = torch.nn.Parameter(torch.tensor([2 * number(i) for i in range(count)]).reshape(rows, columns))
    optimizer = torch.optim.Muon([w], lr=LR, weight_decay=decay, momentum=0.95, nesterov=True)
    for step in range(STEPS):
        optimizer.param_groups[0]["momentum"] = 0.85 + 0.1 * step / 300
        # Rows of three sizes.
        gradient = [number((step + 1) * count + i) * 10.0 ** (i // columns % 3 - 1) for i in range(count)]
        w.grad = torch.tensor(gradient).reshape(rows, columns)
        optimizer.step()
    after = [round(x, 6) for x in w.flatten().tolist()]
    cases.append({"rows": rows, "columns": columns, "lr": LR, "weight_decay": decay, "after": after})
print(json.dumps({"torch": torch.__version__, "steps": STEPS, "cases": cases}))
