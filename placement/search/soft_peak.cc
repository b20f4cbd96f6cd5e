#include "placement/search/soft_peak.h"

#include <algorithm>
#include <cmath>

namespace eplb {
namespace {

// Softness in parts of the scale, and of what the peak is above the scale; the larger counts.
constexpr double kLeastSoftness = 0.03;
constexpr double kSoftnessOfExcess = 0.25;

}  // namespace

double SoftnessOf(double peak, double scale) {
  return std::max(kLeastSoftness * scale, kSoftnessOfExcess * (peak - scale));
}

double SoftPeak(std::span<const double> loads, double scale) {
  const double peak = *std::max_element(loads.begin(), loads.end());
  const double softness = SoftnessOf(peak, scale);
  double sum = 0;
  for (const double load : loads) sum += std::exp((load - peak) / softness);
  return peak + softness * std::log(sum);
}

}  // namespace eplb
