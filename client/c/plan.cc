#include <algorithm>
#include <utility>

#include "client/c/eplb_plan.h"
#include "client/c/plan_handle.h"
#include "client/c/report.h"
#include "client/c/structs.h"

namespace eplb::c {
namespace {

absl::Status CheckCells(const eplb_plan_options& options, const void* load) {
  if (load == nullptr) return absl::InvalidArgumentError("the load is NULL");
  if (options.num_layers >= 1 && options.num_experts >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("num_layers ", options.num_layers,
                                                 ", num_experts ", options.num_experts,
                                                 ", expected at least 1"));
}

// make_load: (Matrix) -> StatusOr<Load>.
template <class Matrix, class Cell, class MakeLoad>
int32_t MakePlan(const eplb_plan_options* pointer, const Cell* cells, const MakeLoad& make_load,
                 eplb_plan** plan) noexcept {
  return Guarded([&]() -> absl::Status {
    if (plan == nullptr) return absl::InvalidArgumentError("plan is NULL");
    *plan = nullptr;
    EPLB_ASSIGN_OR_RETURN(const eplb_plan_options options, ReadPlanOptions(pointer));
    EPLB_RETURN_IF_ERROR(CheckCells(options, cells));
    EPLB_ASSIGN_OR_RETURN(const Load load, make_load(Eigen::Map<const Matrix>(
                                               cells, options.num_layers, options.num_experts)));
    EPLB_ASSIGN_OR_RETURN(std::unique_ptr<eplb_plan> solved, SolvePlan(options, load));
    *plan = solved.release();
    return absl::OkStatus();
  });
}

void CopyMap(const IndexMatrix& map, int64_t* cells) {
  if (cells != nullptr) std::copy_n(map.data(), map.size(), cells);
}

void CopyFigures(const std::vector<double>& figures, double* cells) {
  if (cells != nullptr) std::copy(figures.begin(), figures.end(), cells);
}

absl::Status CheckPlan(const eplb_plan* plan) {
  return plan == nullptr ? absl::InvalidArgumentError("plan is NULL") : absl::OkStatus();
}

}  // namespace
}  // namespace eplb::c

extern "C" {

int32_t eplb_rebalance_experts(const eplb_rebalance_options* options, const float* weight,
                               eplb_plan** plan) noexcept {
  return eplb::c::Guarded([&]() -> absl::Status {
    if (plan == nullptr) return absl::InvalidArgumentError("plan is NULL");
    *plan = nullptr;
    EPLB_ASSIGN_OR_RETURN(std::unique_ptr<eplb_plan> solved, eplb::c::Rebalance(options, weight));
    *plan = solved.release();
    return absl::OkStatus();
  });
}

int32_t eplb_plan_options_init(eplb_plan_options* options, size_t struct_size) noexcept {
  return eplb::c::Guarded([&]() -> absl::Status {
    if (options == nullptr) return absl::InvalidArgumentError("options is NULL");
    EPLB_RETURN_IF_ERROR(eplb::c::CheckStructSize<eplb_plan_options>("options", struct_size));
    options->struct_size = struct_size;
    eplb::c::FillStruct(eplb::c::DefaultPlanOptions(), options);
    return absl::OkStatus();
  });
}

int32_t eplb_plan_from_counts(const eplb_plan_options* options, const int64_t* counts,
                              eplb_plan** plan) noexcept {
  return eplb::c::MakePlan<eplb::LoadMatrix>(options, counts, eplb::Load::FromCounts, plan);
}

int32_t eplb_plan_from_estimates(const eplb_plan_options* options, const double* load,
                                 eplb_plan** plan) noexcept {
  return eplb::c::MakePlan<eplb::RealMatrix>(options, load, eplb::Load::FromEstimates, plan);
}

int32_t eplb_plan_get_sizes(const eplb_plan* plan, eplb_plan_sizes* sizes) noexcept {
  return eplb::c::Guarded([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckPlan(plan));
    EPLB_RETURN_IF_ERROR(eplb::c::CheckFillable("sizes", sizes));
    const eplb::Topology& topology = plan->placement.topology();
    eplb_plan_sizes result = {};
    result.num_layers = topology.num_layers();
    result.num_experts = topology.num_experts();
    result.num_slots = topology.num_slots();
    result.max_replicas = plan->placement.max_replicas();
    eplb::c::FillStruct(result, sizes);
    return absl::OkStatus();
  });
}

int32_t eplb_plan_copy_maps(const eplb_plan* plan, int64_t* physical_to_logical_map,
                            int64_t* logical_to_physical_map, int64_t* logical_count) noexcept {
  return eplb::c::Guarded([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckPlan(plan));
    eplb::c::CopyMap(plan->placement.physical_to_logical_map(), physical_to_logical_map);
    eplb::c::CopyMap(plan->placement.logical_replica_count(), logical_count);
    if (logical_to_physical_map != nullptr) {
      eplb::c::CopyMap(plan->placement.logical_to_physical_map(), logical_to_physical_map);
    }
    return absl::OkStatus();
  });
}

int32_t eplb_plan_copy_figures(const eplb_plan* plan, double* balancedness,
                               double* max_gpu_load) noexcept {
  return eplb::c::Guarded([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckPlan(plan));
    if (!plan->evaluation.has_value()) {
      return absl::FailedPreconditionError(
          "the plan has no figures: its weights are no load, some are negative or not finite");
    }
    eplb::c::CopyFigures(plan->evaluation->balancedness, balancedness);
    eplb::c::CopyFigures(plan->evaluation->max_gpu_load, max_gpu_load);
    return absl::OkStatus();
  });
}

void eplb_plan_destroy(eplb_plan* plan) noexcept { delete plan; }

}  // extern "C"
