#include "placement/evaluate.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/figure_mean.h"

namespace eplb {

namespace {

absl::Status CheckShapes(const Load& load, const Placement& placement, const GpuSpeeds& speeds,
                         const RealMatrix* shares) {
  const Topology& topology = placement.topology();
  EPLB_RETURN_IF_ERROR(CheckLoadFits(load, topology, "placement"));
  if (speeds.num_gpus() != topology.num_gpus()) {
    return InvalidInput(speeds.num_gpus(), " GPU speeds, the placement has ", topology.num_gpus(),
                        " GPUs");
  }
  if (shares != nullptr &&
      (shares->rows() != topology.num_layers() || shares->cols() != topology.num_slots())) {
    return InvalidInput("shares are ", shares->rows(), " x ", shares->cols(), ", expected ",
                        topology.num_layers(), " layers x ", topology.num_slots(), " slots");
  }
  return absl::OkStatus();
}

// Adds the tokens of each slot to its GPU, then divides by the speeds.
absl::StatusOr<RealMatrix> GpuLoads(const RealMatrix& tokens, const Placement& placement,
                                    const GpuSpeeds& speeds, const RealMatrix* shares) {
  const Topology& topology = placement.topology();
  const IndexMatrix& slots = placement.physical_to_logical_map();
  const IndexMatrix& counts = placement.logical_replica_count();
  RealMatrix gpu_loads = RealMatrix::Zero(topology.num_layers(), topology.num_gpus());
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    const int32_t first = topology.FirstSlotOf(GpuId{gpu}).value;
    const double speed = speeds.SpeedOf(GpuId{gpu});
    for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
      double sum = 0;
      for (int32_t slot = first; slot < first + topology.SlotsOf(GpuId{gpu}); ++slot) {
        const int32_t expert = slots(layer, slot);
        if (expert < 0) continue;
        if (speed == 0) {
          return InvalidInput("layer ", layer, " slot ", slot, " is on unusable GPU ", gpu,
                              " and holds expert ", expert);
        }
        sum += shares == nullptr ? tokens(layer, expert) / counts(layer, expert)
                                 : tokens(layer, expert) * (*shares)(layer, slot);
      }
      gpu_loads(layer, gpu) = speed > 0 ? sum / speed : 0;
    }
  }
  return gpu_loads;
}

}  // namespace

absl::StatusOr<Evaluation> Evaluate(const Load& load, const Placement& placement,
                                    const EvaluateOptions& options) {
  const Topology& topology = placement.topology();
  const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
  const GpuSpeeds& speeds = options.speeds == nullptr ? equal : *options.speeds;
  EPLB_RETURN_IF_ERROR(CheckShapes(load, placement, speeds, options.shares));
  EPLB_ASSIGN_OR_RETURN(RealMatrix gpu_loads,
                        GpuLoads(load.ToDouble(), placement, speeds, options.shares));
  return EvaluateGpuLoads(std::move(gpu_loads), speeds.num_usable());
}

Evaluation EvaluateGpuLoads(RealMatrix gpu_loads, int32_t num_usable,
                            std::span<const double> peaks) {
  Evaluation result;
  result.gpu_loads = std::move(gpu_loads);
  FigureMean mean_of_layers;
  for (Eigen::Index layer = 0; layer < result.gpu_loads.rows(); ++layer) {
    const auto loads = result.gpu_loads.row(layer);
    const double peak = peaks.empty() ? loads.maxCoeff() : peaks[static_cast<size_t>(layer)];
    // Rounding can put the mean a last bit above the maximum; a balancedness is never above 1.
    const double mean = loads.sum() / num_usable;
    std::optional<double> balancedness;
    if (peak > 0) {
      balancedness = std::min(1.0, mean / peak);
      result.min_balancedness = std::min(result.min_balancedness.value_or(1), *balancedness);
    }
    result.max_gpu_load.push_back(peak);
    result.balancedness.push_back(balancedness);
    result.peak_load += peak;
    mean_of_layers.Add(balancedness);
  }
  result.mean_balancedness = mean_of_layers.Value();
  return result;
}

int64_t CountDuplicates(const Placement& placement) {
  const Topology& topology = placement.topology();
  int64_t duplicates = 0;
  std::vector<int32_t> held;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      const auto slots = placement.physical_to_logical_map().row(layer).segment(
          topology.FirstSlotOf(GpuId{gpu}).value, topology.SlotsOf(GpuId{gpu}));
      if (slots.size() > 0 && slots(0) < 0) continue;  // an unusable GPU
      held.assign(slots.begin(), slots.end());
      std::ranges::sort(held);
      duplicates += held.end() - std::unique(held.begin(), held.end());
    }
  }
  return duplicates;
}

}  // namespace eplb
