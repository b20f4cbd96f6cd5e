#include "placement/policies/deepseek_policy.h"

#include <algorithm>
#include <span>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

constexpr int64_t kMaxSortedCells = int64_t{1} << 28;

absl::Status CheckNumbers(int64_t num_layers, int64_t num_experts, const DeepseekShape& shape) {
  if (num_layers < 1 || num_experts < 1 || shape.num_slots < 1 || shape.num_groups < 1 ||
      shape.num_nodes < 1 || shape.num_gpus < 1) {
    return InvalidInput("every number must be at least 1, got ", num_layers, " layers, ",
                        num_experts, " experts, ", shape.num_slots, " slots, ", shape.num_groups,
                        " expert groups, ", shape.num_nodes, " nodes, ", shape.num_gpus, " GPUs");
  }
  if (num_layers > kMaxSortedCells / shape.num_slots) {
    return InvalidInput(num_layers, " layers x ", shape.num_slots, " slots; at most ",
                        kMaxSortedCells, " cells are accepted");
  }
  return absl::OkStatus();
}

absl::Status CheckMultiple(const char* name, int64_t number, const char* of_name, int64_t of) {
  if (number % of == 0) return absl::OkStatus();
  return InvalidInput(number, " ", name, " are not a multiple of ", of, " ", of_name);
}

absl::StatusOr<DeepseekLayerShape> MakeLayerShape(int64_t num_layers, int64_t num_experts,
                                                  DeepseekShape shape) {
  EPLB_RETURN_IF_ERROR(CheckNumbers(num_layers, num_experts, shape));
  if (shape.num_groups % shape.num_nodes != 0) shape.num_groups = shape.num_nodes = 1;
  EPLB_RETURN_IF_ERROR(CheckMultiple("experts", num_experts, "expert groups", shape.num_groups));
  EPLB_RETURN_IF_ERROR(CheckMultiple("GPUs", shape.num_gpus, "nodes", shape.num_nodes));
  if (shape.num_slots % shape.num_gpus != 0) {
    return InvalidInput(
        shape.num_slots, " slots are not a multiple of ", shape.num_gpus, " GPUs, next: ",
        EqualSlots(std::max<int64_t>(shape.num_slots, num_experts), shape.num_gpus), " slots");
  }
  if (shape.num_slots < num_experts) {
    return InvalidInput(shape.num_slots, " slots cannot hold ", num_experts, " experts");
  }
  return DeepseekLayerShape{.experts = static_cast<size_t>(num_experts),
                            .slots = static_cast<size_t>(shape.num_slots),
                            .groups = static_cast<size_t>(shape.num_groups),
                            .nodes = static_cast<size_t>(shape.num_nodes),
                            .gpus = static_cast<size_t>(shape.num_gpus)};
}

template <class Matrix>
auto Row(Matrix& matrix, Eigen::Index row) {
  return std::span(matrix.data() + row * matrix.cols(), static_cast<size_t>(matrix.cols()));
}

class DeepseekPolicy final : public Policy {
 public:
  explicit DeepseekPolicy(const PolicyOptions& options) : options_(options) {}

  std::string_view name() const override { return "deepseek"; }

  absl::StatusOr<Placement> Solve(const PolicyInput& input) const override {
    const Topology& topology = input.topology;
    EPLB_RETURN_IF_ERROR(CheckLoadFits(input.load, topology));
    if (input.speeds != nullptr && !input.speeds->all_equal()) {
      return InvalidInput("policy deepseek takes every GPU as usable and equally fast");
    }
    if (input.scenarios.size() > 1) {
      return InvalidInput("policy deepseek plans for one load, not for ", input.scenarios.size());
    }
    // It searches nothing: all its work is less than another policy's on one layer.
    EPLB_RETURN_IF_ERROR(CheckWanted(input));
    EPLB_ASSIGN_OR_RETURN(const FloatMatrix weight, input.load.ToFloat());
    const bool global = options_.hierarchy == Hierarchy::kNone;
    const DeepseekShape shape = {
        .num_slots = topology.num_slots(),
        .num_groups = global ? 1 : topology.num_groups(),
        .num_nodes = global ? 1 : topology.num_nodes(),
        .num_gpus = topology.num_gpus(),
    };
    EPLB_ASSIGN_OR_RETURN(const DeepseekMaps maps,
                          RebalanceExperts(weight, shape, options_.tie_break));
    return Placement::FromSlotsAndRanks(topology, maps.physical_to_logical, maps.replica_rank);
  }

 private:
  PolicyOptions options_;
};

}  // namespace

absl::StatusOr<DeepseekMaps> RebalanceExperts(const Eigen::Ref<const FloatMatrix>& weight,
                                              const DeepseekShape& shape, TieBreak tie_break) {
  EPLB_ASSIGN_OR_RETURN(const DeepseekLayerShape frame,
                        MakeLayerShape(weight.rows(), weight.cols(), shape));
  DeepseekMaps maps = {.physical_to_logical = IndexMatrix(weight.rows(), shape.num_slots),
                       .replica_rank = IndexMatrix(weight.rows(), shape.num_slots),
                       .counts = IndexMatrix(weight.rows(), weight.cols())};
  DeepseekLayerSolver solver(frame, tie_break);
  for (Eigen::Index layer = 0; layer < weight.rows(); ++layer) {
    // A Ref may be a window into a wider matrix: rows are contiguous, the whole need not be.
    const std::span row(weight.data() + layer * weight.outerStride(), frame.experts);
    solver.Solve(row, {.physical_to_logical = Row(maps.physical_to_logical, layer),
                       .replica_rank = Row(maps.replica_rank, layer),
                       .counts = Row(maps.counts, layer)});
  }
  return maps;
}

std::unique_ptr<Policy> MakeDeepseekPolicy(const PolicyOptions& options) {
  return std::make_unique<DeepseekPolicy>(options);
}

}  // namespace eplb
