#include "placement/token_split.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "placement/layer_flow.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

// Of the layer's heaviest expert, which is scaled to about 1: parts of a lighter one could be
// denormal, and it weighs nothing.
constexpr double kNegligible = 1e-280;
// 2^1000 leaves room for a sum of 2^20 experts.
constexpr int kMaxExponent = 1000;

absl::Status CheckSpeeds(std::span<const double> speeds, const Topology& topology) {
  if (speeds.size() != static_cast<size_t>(topology.num_gpus())) {
    return absl::InvalidArgumentError(
        absl::StrCat(speeds.size(), " GPU speeds for ", topology.num_gpus(), " GPUs"));
  }
  for (size_t gpu = 0; gpu < speeds.size(); ++gpu) {
    if (std::isfinite(speeds[gpu]) && speeds[gpu] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the speed of GPU ", gpu, " is ", speeds[gpu], ", expected >= 0 and finite"));
  }
  return absl::OkStatus();
}

std::vector<int32_t> GpuOfSlot(const Topology& topology) {
  std::vector<int32_t> gpus;
  gpus.reserve(static_cast<size_t>(topology.num_slots()));
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    gpus.insert(gpus.end(), static_cast<size_t>(topology.SlotsOf(GpuId{gpu})), gpu);
  }
  return gpus;
}

absl::Status CheckUsable(const Placement& placement, std::span<const double> speeds,
                         std::span<const int32_t> gpu_of_slot) {
  if (std::find(speeds.begin(), speeds.end(), 0.0) == speeds.end()) return absl::OkStatus();
  const IndexMatrix& experts = placement.physical_to_logical_map();
  for (Eigen::Index layer = 0; layer < experts.rows(); ++layer) {
    for (Eigen::Index slot = 0; slot < experts.cols(); ++slot) {
      const int32_t gpu = gpu_of_slot[static_cast<size_t>(slot)];
      if (experts(layer, slot) < 0 || speeds[static_cast<size_t>(gpu)] > 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " slot ", slot,
                                                     " holds expert ", experts(layer, slot),
                                                     ", but GPU ", gpu, " has speed 0"));
    }
  }
  return absl::OkStatus();
}

// A power of two that brings the heaviest expert near 1: scaling is exact, and no sum over- and no
// quotient underflows.
double Scale(const Eigen::Ref<const Eigen::RowVectorXd>& tokens) {
  int exponent = 0;
  (void)std::frexp(tokens.maxCoeff(), &exponent);
  return std::ldexp(1.0, std::clamp(-exponent, -kMaxExponent, kMaxExponent));
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
                                          std::span<const double> speeds) {
  const Topology& topology = placement.topology();
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the placement has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  std::vector<double> gpu_speeds(speeds.begin(), speeds.end());
  if (speeds.empty()) gpu_speeds.assign(static_cast<size_t>(topology.num_gpus()), 1.0);
  EPLB_RETURN_IF_ERROR(CheckSpeeds(gpu_speeds, topology));
  std::vector<int32_t> gpu_of_slot = GpuOfSlot(topology);
  EPLB_RETURN_IF_ERROR(CheckUsable(placement, gpu_speeds, gpu_of_slot));

  const RealMatrix tokens = load.ToDouble();
  TokenSplit split{.shares = EqualShares(placement), .max_gpu_load = {}};
  LayerFlow flow(std::move(gpu_speeds), std::move(gpu_of_slot));
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
