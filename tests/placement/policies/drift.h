// Loads of a router whose choices drift from window to window, the same on every machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "placement/load.h"

namespace eplb {

// Loads that drift by about exp(sigma * normal) a window, as counts.
class Drift {
 public:
  Drift(int32_t layers, int32_t experts, double spread, double sigma, uint64_t seed)
      : random_(seed), sigma_(sigma), weight_(RealMatrix::Zero(layers, experts)) {
    for (double& cell : weight_.reshaped()) cell = spread * Normal();
  }
  Load Next() {
    LoadMatrix counts(weight_.rows(), weight_.cols());
    for (Eigen::Index i = 0; i < counts.size(); ++i) {
      const double mean = 4000 * std::exp(weight_.data()[i]);
      counts.data()[i] = static_cast<int64_t>(std::max(0.0, mean + std::sqrt(mean) * Normal()));
      weight_.data()[i] += sigma_ * Normal();
    }
    return *Load::FromCounts(counts);
  }

 private:
  // Sum of twelve uniforms: the same on every machine, unlike std::normal_distribution.
  double Normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random_() >> 11) * 0x1p-53;
    return sum;
  }
  std::mt19937_64 random_;
  double sigma_;
  RealMatrix weight_;
};

}  // namespace eplb
