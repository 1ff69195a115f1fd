// SPDX-License-Identifier: Apache-2.0
/// @file
/// On a GPU, in one run: AdamW's step (bf16 parameters and gradients, fp32 masters and states, 28 bytes an element) and the square sum of its
/// gradient against a copy on the device of as many bytes. Checks its result.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <zero/zero.hpp>

#include "timing.hpp"

namespace {

ZERO_HOST_DEVICE float start_of(std::int64_t i) { return static_cast<float>(i % 1000) - 500.0f; }
ZERO_HOST_DEVICE zero::bf16 gradient_of(std::int64_t i) { return zero::bf16{static_cast<float>(i % 257) - 128.0f}; }

struct Start {
  float* master;
  zero::bf16* gradient;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    master[i] = start_of(i);
    gradient[i] = gradient_of(i);
  }
};

/// Seconds on the device, by CUDA's own events.
class Timer {
public:
  explicit Timer(zero::CudaStreamRef stream) : stream_(stream) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  template <class F>
  double seconds(F&& f) {
    cudaEventRecord(begin_, stream_.native());
    f();
    cudaEventRecord(end_, stream_.native());
    cudaEventSynchronize(end_);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin_, end_);
    return static_cast<double>(milliseconds) * 1e-3;
  }

private:
  zero::CudaStreamRef stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

int run(std::int64_t n, int rounds) {
  using zero::bf16;
  using zero::CudaDevice;
  using zero::Purpose;
  zero::CudaStream const stream;
  zero::CudaMemory memory;
  zero::Buffer<float> master{memory, n, Purpose::optimizer_states}, mean{memory, n, Purpose::optimizer_states},
      square{memory, n, Purpose::optimizer_states};
  zero::Buffer<bf16> gradient{memory, n, Purpose::gradients}, parameter{memory, n, Purpose::parameters};
  std::int64_t const copied = 14 * n;  // read and written: 28 bytes an element, as the step
  zero::Buffer<std::byte> from{memory, copied, Purpose::staging}, to{memory, copied, Purpose::staging};
  zero::Buffer<zero::StepState> decision{memory, 1, Purpose::control};
  zero::Buffer<zero::UpdateState<zero::AdamW>> update{memory, 1, Purpose::control};
  using Sum = zero::exact_square_sum_t<bf16>;
  zero::Buffer<Sum> sum{memory, 1, Purpose::control};

  CudaDevice::for_each(stream, n, Start{master.data(), gradient.data()});
  CudaDevice::fill(stream, mean.data(), n, 0);
  CudaDevice::fill(stream, square.data(), n, 0);
  CudaDevice::fill(stream, from.data(), copied, std::byte{1});
  CudaDevice::fill(stream, reinterpret_cast<std::byte*>(sum.data()), sum.bytes(), std::byte{});
  zero::AdamW const optimizer{.learning_rate = 1e-3, .weight_decay = 0.1};
  zero::StepState host_decision{};
  zero::UpdateState<zero::AdamW> host_update{};
  decide(host_decision, zero::StepRules{.factor = 0.5});
  advance(host_update, optimizer, host_decision);
  CudaDevice::copy(stream, decision.data(), &host_decision, sizeof host_decision);
  CudaDevice::copy(stream, update.data(), &host_update, sizeof host_update);
  zero::detail::OptimizerStep<zero::AdamW, float, bf16, bf16> const step{decision.data(), update.data(),    master.data(),
                                                                         gradient.data(), parameter.data(), {mean.data(), square.data()}};
  zero::detail::SquareSum<bf16> const squares{sum.data(), gradient.data(), 0, n, 128};

  Timer timer{stream};
  std::vector<double> step_rate, copy_rate, sum_rate, ratio;
  for (int round = 0; round <= rounds; ++round) {
    double const copying = timer.seconds([&] { CudaDevice::copy(stream, to.data(), from.data(), copied); });
    double const stepping = timer.seconds([&] { CudaDevice::for_each(stream, n, step); });
    double const summing = timer.seconds([&] { CudaDevice::accumulate(stream, squares.parts(), squares); });
    if (round == 0) continue;
    step_rate.push_back(28e-9 * static_cast<double>(n) / stepping);
    copy_rate.push_back(2e-9 * static_cast<double>(copied) / copying);
    sum_rate.push_back(2e-9 * static_cast<double>(n) / summing);
    ratio.push_back(copying / stepping);
  }

  // Elements, stepped alone on the host from the start, must be what the kernel made of them.
  std::int64_t wrong = 0;
  std::vector<float> masters(static_cast<std::size_t>(n));
  CudaDevice::copy(stream, masters.data(), master.data(), master.bytes());
  CudaDevice::synchronize(stream);
  for (std::int64_t i = 0; i < n; i += 9973) {
    float p = start_of(i), m = 0, v = 0;
    bf16 const g = gradient_of(i);
    bf16 rounded;
    zero::detail::OptimizerStep<zero::AdamW, float, bf16, bf16> const single{&host_decision, &host_update, &p, &g, &rounded, {&m, &v}};
    for (int round = 0; round <= rounds; ++round) single(0, 1);
    if (p != masters[static_cast<std::size_t>(i)]) ++wrong;
  }

  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, stream.device());
  std::printf("%s, AdamW, %lld elements of 28 bytes, %d rounds; median [10 %%, 90 %%]\n", properties.name, static_cast<long long>(n),
              rounds);
  auto const print = [](char const* what, std::vector<double> const& values, char const* unit) {
    bench::Spread const s = bench::spread(values);
    std::printf("%-26s %8.2f [%.2f, %.2f] %s\n", what, s.median, s.low, s.high, unit);
  };
  print("step", step_rate, "GB/s, read and written");
  print("copy on the device", copy_rate, "GB/s, read and written");
  print("step over copy", ratio, "(the limit is 1)");
  constexpr double goal = 0.92;
  std::printf("%-26s at least %.2f: %s\n", "goal of that", goal, bench::spread(ratio).median >= goal ? "met" : "NOT met");
  print("square sum of bf16", sum_rate, "GB/s, read");
  std::printf("result  %s\n", wrong == 0 ? "equal to the host's" : "WRONG");
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? std::atoll(argv[1]) : std::int64_t{256} << 20, argc > 2 ? std::atoi(argv[2]) : 21);
  } catch (zero::Error const& error) {
    std::printf("%s\n", error.what());
    return 77;
  }
}
