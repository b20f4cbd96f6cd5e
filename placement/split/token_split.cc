#include "placement/split/token_split.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/status_macros.h"
#include "placement/split/split_body.h"
#include "placement/split/split_graph.h"
#include "placement/split/split_solver.h"

namespace eplb {
namespace {

// Half of what the solver takes, because rounding may add a token for every second expert.
constexpr int64_t kScaledTokens = kMaxSplitTokens / 2;
// ldexp(1, +-1000) is neither infinite nor denormal.
constexpr int kMaxExponent = 1000;

// Writes quota / tokens for the slots of an expert. Quotas that differ only because the tokens do
// not divide are equal shares.
void WriteShares(std::span<const int32_t> slots, std::span<const int64_t> quotas, int64_t tokens,
                 std::span<double> shares) {
  const auto [least, most] = std::ranges::minmax_element(
      slots, [&](int32_t a, int32_t b) { return quotas[AsIndex(a)] < quotas[AsIndex(b)]; });
  if (quotas[AsIndex(*most)] - quotas[AsIndex(*least)] <= 1) return;
  for (const int32_t slot : slots) {
    const auto quota = static_cast<double>(quotas[AsIndex(slot)]);
    shares[AsIndex(slot)] = quota / static_cast<double>(tokens);
  }
}

}  // namespace

std::vector<int64_t> ScaledTokens(std::span<const double> load, int64_t total) {
  // A power of two brings the heaviest expert near 1: that is exact, and the sum is finite.
  int exponent = 0;
  (void)std::frexp(*std::ranges::max_element(load), &exponent);
  const double unit = std::ldexp(1.0, std::clamp(-exponent, -kMaxExponent, kMaxExponent));
  double sum = 0;
  for (const double tokens : load) sum += tokens * unit;
  std::vector<int64_t> scaled(load.size());
  for (size_t expert = 0; expert < load.size() && sum > 0; ++expert) {
    scaled[expert] = std::llround(load[expert] * unit / sum * static_cast<double>(total));
  }
  return scaled;
}

RealMatrix EqualShares(const Placement& placement) {
  const IndexMatrix& experts = placement.physical_to_logical_map();
  RealMatrix shares = RealMatrix::Zero(experts.rows(), experts.cols());
  for (Eigen::Index layer = 0; layer < experts.rows(); ++layer) {
    for (Eigen::Index slot = 0; slot < experts.cols(); ++slot) {
      const int32_t expert = experts(layer, slot);
      if (expert < 0) continue;
      shares(layer, slot) = 1.0 / placement.logical_replica_count()(layer, expert);
    }
  }
  return shares;
}

absl::StatusOr<RealMatrix> SplitOptimally(const Load& load, const Placement& placement,
                                          const GpuSpeeds* speeds) {
  const Topology& topology = placement.topology();
  EPLB_RETURN_IF_ERROR(CheckLoadFits(load, topology, "placement"));
  EPLB_RETURN_IF_ERROR(CheckSplittable(placement, {.speeds = speeds}));
  const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
  const std::vector<int64_t> integer_speeds =
      SplitSpeeds((speeds == nullptr ? equal : *speeds).speeds());
  SplitLayerBuilder builder(topology);
  const std::unique_ptr<SplitSolver> solver = SplitSolver::Make(topology.num_gpus());
  const RealMatrix tokens = load.ToDouble();
  RealMatrix shares = EqualShares(placement);
  std::vector<int64_t> quotas(AsIndex(topology.num_slots()));
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const std::vector<int64_t> counts =
        ScaledTokens({&tokens(layer, 0), AsIndex(topology.num_experts())}, kScaledTokens);
    builder.Start();
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      builder.Add(placement.ReplicasOf(LayerId{layer}, ExpertId{expert}));
    }
    solver->Prepare(builder.Finish(integer_speeds));
    (void)solver->Solve(counts.data(), {}, {.quotas = quotas.data()});
    const std::span<double> row(&shares(layer, 0), quotas.size());
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      WriteShares(placement.ReplicasOf(LayerId{layer}, ExpertId{expert}), quotas,
                  counts[AsIndex(expert)], row);
    }
  }
  return shares;
}

}  // namespace eplb
