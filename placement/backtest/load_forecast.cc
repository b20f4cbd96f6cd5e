#include "placement/backtest/load_forecast.h"

#include <vector>

namespace eplb {
namespace {

absl::StatusOr<Load> WithTokensOf(const Load& newest, RealMatrix shares) {
  const RealMatrix tokens = newest.ToDouble();
  for (Eigen::Index layer = 0; layer < shares.rows(); ++layer) {
    const double all = shares.row(layer).sum();
    if (all > 0) shares.row(layer) *= tokens.row(layer).sum() / all;
  }
  if (!newest.is_counts()) return Load::FromEstimates(std::move(shares));
  return Load::FromCounts(shares.round().cast<int64_t>());
}

}  // namespace

absl::StatusOr<Load> ForecastTrend(std::span<const Load> windows) {
  if (windows.size() < 2) return windows.back();
  const RealMatrix newest = NormalisedLayers(windows.back());
  const RealMatrix before = NormalisedLayers(windows[windows.size() - 2]);
  return WithTokensOf(windows.back(), (newest + kTrendDamping * (newest - before)).max(0));
}

absl::StatusOr<Load> ForecastFiltered(std::span<const Load> windows) {
  if (windows.size() < 3) return windows.back();
  std::vector<RealMatrix> roots;
  for (const Load& window : windows) roots.push_back(NormalisedLayers(window).sqrt());
  // Sums over a layer: squares of its changes, and products of changes in a row.
  const Eigen::Index num_layers = roots.front().rows();
  Eigen::ArrayXd square = Eigen::ArrayXd::Zero(num_layers);
  Eigen::ArrayXd product = square;
  for (size_t t = 1; t < roots.size(); ++t) {
    const RealMatrix change = roots[t] - roots[t - 1];
    square += change.square().rowwise().sum();
    if (t > 1) product += (change * (roots[t - 1] - roots[t - 2])).rowwise().sum();
  }
  const auto changes = static_cast<double>(roots.size() - 1);
  const Eigen::ArrayXd noise = (-product / (changes - 1)).max(0);
  const Eigen::ArrayXd drift = (square / changes - 2 * noise).max(0);
  RealMatrix level = roots.front();
  for (Eigen::Index layer = 0; layer < num_layers; ++layer) {
    double error = noise[layer];  // variance of the level
    for (size_t t = 1; t < roots.size(); ++t) {
      error += drift[layer];
      const double seen = error + noise[layer];
      const double gain = seen > 0 ? error / seen : 1;
      level.row(layer) += gain * (roots[t].row(layer) - level.row(layer));
      error *= 1 - gain;
    }
  }
  return WithTokensOf(windows.back(), level.square());
}

}  // namespace eplb
