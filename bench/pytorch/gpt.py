# SPDX-License-Identifier: Apache-2.0
"""The GPT-2 of examples/gpt in PyTorch, one rank, for comparison: tokens a second of the same step (forward, backward, clipping, fused AdamW, and
the loss read by the host each step), with the same sizes by default.

    python3 bench/pytorch/gpt.py [--precision fp32|bf16] [--layers N] ... [--steps N] [--device cuda|cpu]
    python3 bench/pytorch/gpt.py --check tests/fixtures/gpt2_small.fixture     # logits, loss and gradients against the fixture's

fp32: all in fp32, products without TF32, as the example's. bf16: parameters and gradients in bf16 with fp32 masters, as the example's; but here
the arithmetic is bf16's on tensor cores, which the example's is not.
"""

import argparse
import math
import statistics
import struct
import sys
import time

import torch
from torch.nn import functional


class Gpt:
    """Parameters with the names and shapes of the published checkpoint: weights of products are [in, out]."""

    def __init__(self, layers, heads, channels, context, vocabulary):
        self.layers, self.heads, self.channels = layers, heads, channels
        c = channels
        self.shapes = {"wte.weight": (vocabulary, c), "wpe.weight": (context, c)}
        for layer in range(layers):
            for name, shape in {
                "ln_1.weight": (c,), "ln_1.bias": (c,), "attn.c_attn.weight": (c, 3 * c), "attn.c_attn.bias": (3 * c,),
                "attn.c_proj.weight": (c, c), "attn.c_proj.bias": (c,), "ln_2.weight": (c,), "ln_2.bias": (c,),
                "mlp.c_fc.weight": (c, 4 * c), "mlp.c_fc.bias": (4 * c,), "mlp.c_proj.weight": (4 * c, c), "mlp.c_proj.bias": (c,),
            }.items():
                self.shapes[f"h.{layer}.{name}"] = shape
        self.shapes |= {"ln_f.weight": (c,), "ln_f.bias": (c,)}
        self.p = {}

    def initialize(self, device, element):
        generator = torch.Generator().manual_seed(1)
        for name, shape in self.shapes.items():
            deviation = 0.02 if name.startswith("w") else max(0.02, 0.5 / math.sqrt(self.channels))
            if name.endswith("c_proj.weight"):
                deviation /= math.sqrt(2 * self.layers)
            if name.endswith(".bias"):
                value = torch.zeros(shape)
            elif "ln_" in name:
                value = torch.ones(shape)
            else:
                value = torch.randn(shape, generator=generator) * deviation
            self.p[name] = torch.nn.Parameter(value.to(device, element))

    def logits(self, tokens):
        p, c = self.p, self.channels
        batch, length = tokens.shape
        x = p["wte.weight"][tokens] + p["wpe.weight"][:length]
        norm = lambda x, name: functional.layer_norm(x, (c,), p[name + ".weight"], p[name + ".bias"], 1e-5)
        linear = lambda x, name: x @ p[name + ".weight"] + p[name + ".bias"]
        for layer in range(self.layers):
            h = f"h.{layer}."
            qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn").view(batch, length, 3, self.heads, c // self.heads)
            q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
            heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(heads.transpose(1, 2).reshape(batch, length, c), h + "attn.c_proj")
            up = functional.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
            x = x + linear(up, h + "mlp.c_proj")
        return norm(x, "ln_f") @ p["wte.weight"].T

    def loss(self, tokens, targets):
        logits = self.logits(tokens)
        return functional.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), targets.reshape(-1))


class Step:
    def __init__(self, model, bf16):
        self.model = model
        self.parameters = list(model.p.values())
        self.masters = [torch.nn.Parameter(p.detach().float()) for p in self.parameters] if bf16 else self.parameters
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)

    def __call__(self, tokens, targets):
        loss = self.model.loss(tokens, targets)
        loss.backward()
        if self.masters is not self.parameters:
            for master, parameter in zip(self.masters, self.parameters):
                master.grad = parameter.grad.float()
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.masters is not self.parameters:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.masters)
        return loss.item()


def read_fixture(path):
    """What tests/fixtures/fixture_file.py writes, as tensors."""
    data = open(path, "rb").read()
    assert data[:8] == b"zerofix1"
    (count,), at = struct.unpack_from("<I", data, 8), 12
    tensors = {}
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, at)
        name = data[at + 4 : at + 4 + size].decode("ascii")
        at += 4 + size
        kind, dimensions = struct.unpack_from("<II", data, at)
        shape = struct.unpack_from(f"<{dimensions}q", data, at + 8)
        at += 8 + 8 * dimensions
        n = math.prod(shape)
        values = struct.unpack_from(f"<{n}{'fi'[kind]}", data, at)
        at += 4 * n
        tensors[name] = torch.tensor(values, dtype=torch.float32 if kind == 0 else torch.int64).reshape(shape)
    return tensors


def check(path):
    fixture = read_fixture(path)
    model = Gpt(layers=2, heads=2, channels=32, context=16, vocabulary=67)
    for name, shape in model.shapes.items():
        weight = fixture["weight/" + name]
        assert tuple(weight.shape) == shape, name
        model.p[name] = torch.nn.Parameter(weight)
    tokens = fixture["tokens"][0]
    logits = model.logits(tokens[:, :-1])
    loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    worst = ((logits - fixture["logits"]).norm() / fixture["logits"].norm()).item()
    worst = max(worst, abs(loss.item() / fixture["loss"].item() - 1))
    for name, parameter in model.p.items():
        expected = fixture["gradient/" + name]
        worst = max(worst, ((parameter.grad - expected).norm() / expected.norm()).item())
    print(f"loss {loss.item():.7f}, the fixture's {fixture['loss'].item():.7f}; largest relative difference {worst:.1e}")
    return 0 if worst < 1e-5 else 1


def main():
    parser = argparse.ArgumentParser()
    for name, value in dict(layers=3, heads=4, channels=64, context=64, batch=4, steps=500).items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--check")
    options = parser.parse_args()
    if options.check:
        return check(options.check)
    torch.backends.cuda.matmul.allow_tf32 = False
    bf16 = options.precision == "bf16"
    model = Gpt(options.layers, options.heads, options.channels, options.context, vocabulary=256)
    model.initialize(options.device, torch.bfloat16 if bf16 else torch.float32)
    step = Step(model, bf16)
    generator = torch.Generator().manual_seed(2)
    times, losses = [], []
    for _ in range(options.steps):
        tokens = torch.randint(0, 256, (options.batch, options.context + 1), generator=generator)
        start = time.perf_counter()
        tokens = tokens.to(options.device)
        losses.append(step(tokens[:, :-1], tokens[:, 1:]))
        times.append(time.perf_counter() - start)
    times = times[len(times) // 10 :]  # without the first tenth
    seconds = statistics.median(times)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "the host"
    print(
        f"PyTorch {torch.__version__}, {name}, {options.precision}, {options.layers} layers, {options.heads} heads, {options.channels} channels, "
        f"context {options.context}, batch {options.batch}: {seconds * 1e3:.3f} ms a step (median of {len(times)}), "
        f"{options.batch * options.context / seconds:.0f} tokens a second; loss {losses[0]:.4f} to {losses[-1]:.4f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
