# SPDX-License-Identifier: Apache-2.0
"""PyTorch's fused AdamW on a GPU, for comparison with bench/cuda_optimizer_step.cu: as many elements, medians in ms, and GB/s where an element
counts 28 bytes, whatever the variant moves.

    python3 bench/pytorch/adamw.py [elements] [rounds] [cpu]

    fp32               parameter, gradient and states in fp32: 28 bytes an element
    bf16               all of them in bf16, no fp32 master: 14 bytes an element; it computes something else
    bf16, fp32 master  what zero's step does: the gradient is widened, the fp32 master stepped, the parameter rounded from it
"""

import statistics
import sys
import time

import torch


def spread(values):
    values = sorted(values)
    n = len(values)
    return statistics.median(values), values[n // 10], values[n - 1 - n // 10]


def measure(device, rounds, call):
    """Milliseconds of each call, the first two left out."""
    times = []
    for round in range(rounds + 2):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            elapsed = begin.elapsed_time(end)
        else:
            start = time.perf_counter()
            call()
            elapsed = (time.perf_counter() - start) * 1e3
        if round >= 2:
            times.append(elapsed)
    return times


def step_of(variant, n, device):
    element = torch.float32 if variant == "fp32" else torch.bfloat16
    parameter = torch.nn.Parameter(torch.ones(n, device=device, dtype=element))
    parameter.grad = torch.full_like(parameter, 0.5)
    stepped = parameter
    if variant == "bf16, fp32 master":
        stepped = torch.nn.Parameter(torch.ones(n, device=device, dtype=torch.float32))
        stepped.grad = torch.empty_like(stepped)
    optimizer = torch.optim.AdamW([stepped], lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, fused=True)

    def step():
        if stepped is not parameter:
            stepped.grad.copy_(parameter.grad)
        optimizer.step()
        if stepped is not parameter:
            with torch.no_grad():
                parameter.copy_(stepped)

    return step


def main():
    device = "cpu" if "cpu" in sys.argv[1:] else "cuda"
    numbers = [int(argument) for argument in sys.argv[1:] if argument != "cpu"]
    n = numbers[0] if numbers else 256 << 20
    rounds = numbers[1] if len(numbers) > 1 else 21
    name = torch.cuda.get_device_name() if device == "cuda" else "the host"
    print(f"PyTorch {torch.__version__}, {name}, fused AdamW, {n} elements, {rounds} rounds; median [10 %, 90 %]")
    source = torch.ones(14 * n, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy = measure(device, rounds, lambda: target.copy_(source))
    del source, target
    for what, times in [("copy of 14 bytes", copy)] + [
        (variant, measure(device, rounds, step_of(variant, n, device))) for variant in ("fp32", "bf16", "bf16, fp32 master")
    ]:
        median, low, high = spread(times)
        print(f"{what:<18} {median:9.3f} [{low:.3f}, {high:.3f}] ms  {28e-6 * n / median:8.1f} GB/s at 28 bytes an element")


if __name__ == "__main__":
    main()
