"""Makes tests/fixtures/gguf_blocks.json: blocks of 32 numbers, quantised by the package gguf.

    gguf_fixture.py > tests/fixtures/gguf_blocks.json
"""

import json

import numpy
from gguf import GGMLQuantizationType, quants

random = numpy.random.default_rng(7)
halves = numpy.arange(31) * 0.5
blocks = [random.standard_normal(32) * scale for scale in (1, 0.02, 1e-3, 300, 1e-6)]
blocks += [
    numpy.linspace(-1, 1, 32), numpy.linspace(0, 1, 32), -numpy.linspace(0.5, 2, 32), numpy.zeros(32),
    numpy.arange(-16, 16) * 0.125, numpy.arange(32) - 127.0, numpy.where(numpy.arange(32) % 2 == 0, 127.0, -127.0),
    # Ties, and both signs of the largest.
    numpy.concatenate([[-127.0], halves]), numpy.concatenate([[127.0], halves - 7.75]),
    numpy.concatenate([[8.0], halves - 7.5]), numpy.concatenate([[-8.0], halves - 7.5]),
]
blocks += [random.standard_normal(32) * scale for scale in (1e-8, 5e4, 1, 1)]
blocks += [random.uniform(-1, 1, 32) for _ in range(12)]
numbers = numpy.stack(blocks).astype(numpy.float32)
fixture = {"made_by": "gguf 0.19.0, gguf.quants.quantize", "numbers": [[int(x) for x in row.view(numpy.uint32)] for row in numbers]}
for kind in ("Q8_0", "Q4_0"):
    fixture[kind.lower()] = [bytes(row).hex() for row in quants.quantize(numbers, GGMLQuantizationType[kind])]
print(json.dumps(fixture, separators=(",", ":")))
