// Shared by the benchmarks: the load and the clock. Used by one binary at a time, so it is a header
// alone.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "placement/load.h"

namespace eplb::bench {

// Token counts of a layer as routers give them: log-normal popularity, drawn anew per layer.
inline Load MakeLoad(int32_t num_layers, int32_t num_experts) {
  std::mt19937_64 random(20250324);
  std::normal_distribution<double> normal;
  LoadMatrix counts(num_layers, num_experts);
  for (int64_t& cell : counts.reshaped())
    cell = std::llround(4096 * std::exp(0.8 * normal(random)));
  return *Load::FromCounts(std::move(counts));
}

// A batch whose log counts are `drift` around the popularity's.
inline LoadMatrix BatchAround(const Load& popularity, double drift) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  LoadMatrix counts = popularity.counts();
  for (int64_t& cell : counts.reshaped()) {
    cell = std::llround(static_cast<double>(cell) * std::exp(drift * normal(random)));
  }
  return counts;
}

template <class Function>
double Milliseconds(const Function& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  return spent.count();
}

inline double Median(std::vector<double>& times) {
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace eplb::bench
