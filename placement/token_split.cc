#include "placement/token_split.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "absl/strings/str_cat.h"

#include "placement/layer_flow.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

// Of the layer's heaviest expert, which is scaled to about 1: parts of a lighter one could be
// denormal, and it weighs nothing.
constexpr double kNegligible = 1e-280;
// 2^1000 leaves room for a sum of 2^20 experts.
constexpr int kMaxShareExponent = 1000;

std::vector<int32_t> GpuOfSlot(const Topology& topology) {
  std::vector<int32_t> gpus;
  gpus.reserve(static_cast<size_t>(topology.num_slots()));
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    gpus.insert(gpus.end(), static_cast<size_t>(topology.SlotsOf(GpuId{gpu})), gpu);
  }
  return gpus;
}

absl::Status CheckUsable(const Placement& placement, const GpuSpeeds& speeds) {
  for (int32_t gpu = 0; gpu < speeds.num_gpus(); ++gpu) {
    if (speeds.Usable(GpuId{gpu}) || !placement.Holds(GpuId{gpu})) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("GPU ", gpu, " is unusable, but the placement has experts on it"));
  }
  return absl::OkStatus();
}

// A power of two that brings the heaviest expert near 1: scaling is exact, and no sum over- and no
// quotient underflows.
double Scale(const Eigen::Ref<const Eigen::RowVectorXd>& tokens) {
  int exponent = 0;
  (void)std::frexp(tokens.maxCoeff(), &exponent);
  return std::ldexp(1.0, std::clamp(-exponent, -kMaxShareExponent, kMaxShareExponent));
}

}  // namespace

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

absl::StatusOr<TokenSplit> SplitOptimally(const Load& load, const Placement& placement,
                                          const GpuSpeeds* speeds) {
  const Topology& topology = placement.topology();
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the placement has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
  const GpuSpeeds& used = speeds == nullptr ? equal : *speeds;
  if (used.num_gpus() != topology.num_gpus()) {
    return absl::InvalidArgumentError(absl::StrCat(
        used.num_gpus(), " GPU speeds, the placement has ", topology.num_gpus(), " GPUs"));
  }
  EPLB_RETURN_IF_ERROR(CheckUsable(placement, used));

  const RealMatrix tokens = load.ToDouble();
  TokenSplit split{.shares = EqualShares(placement), .max_gpu_load = {}};
  LayerFlow flow({used.speeds().begin(), used.speeds().end()}, GpuOfSlot(topology));
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const double scale = Scale(tokens.row(layer).matrix());
    flow.Start();
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      const double scaled = tokens(layer, expert) * scale;
      if (scaled < kNegligible) continue;
      flow.Add(scaled, placement.ReplicasOf(LayerId{layer}, ExpertId{expert}));
    }
    split.max_gpu_load.push_back(flow.Minimise() / scale);
    if (!std::isfinite(split.max_gpu_load.back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer, ": load / speed is above the range of double"));
    }
    flow.WriteShares({&split.shares(layer, 0), static_cast<size_t>(topology.num_slots())});
  }
  return split;
}

}  // namespace eplb
