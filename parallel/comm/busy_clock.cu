// SPDX-License-Identifier: Apache-2.0
#include "busy_clock.hpp"

namespace hyperslab::comm {
namespace {

struct Sums {
  std::uint64_t begin_ns;
  std::uint64_t sum_ns;
};

__device__ std::uint64_t timer_ns() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void start_clock(Sums* sums) { sums->begin_ns = timer_ns(); }

__global__ void stop_clock(Sums* sums, volatile std::uint64_t* published) {
  sums->sum_ns += timer_ns() - sums->begin_ns;
  *published = sums->sum_ns;
}

}  // namespace

BusyClock::BusyClock()
    : sums_(Device::cuda, sizeof(Sums)), published_(Device::cuda, sizeof(std::uint64_t)) {}

cudaError_t BusyClock::clear(cudaStream_t stream) {
  return cudaMemsetAsync(sums_.data(), 0, sizeof(Sums), stream);
}

cudaError_t BusyClock::start(cudaStream_t stream) {
  start_clock<<<1, 1, 0, stream>>>(static_cast<Sums*>(sums_.data()));
  return cudaGetLastError();
}

cudaError_t BusyClock::stop(cudaStream_t stream) {
  stop_clock<<<1, 1, 0, stream>>>(static_cast<Sums*>(sums_.data()),
                                  static_cast<std::uint64_t*>(published_.device_data()));
  return cudaGetLastError();
}

double BusyClock::seconds() const {
  constexpr double kNanosecond = 1e-9;
  const auto* published = static_cast<const volatile std::uint64_t*>(published_.data());
  return static_cast<double>(*published) * kNanosecond;
}

const std::uint64_t* BusyClock::device_nanoseconds() const {
  return &static_cast<const Sums*>(sums_.data())->sum_ns;
}

}  // namespace hyperslab::comm
