#include "client/shown_placement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/paths/device_transports.h"
#include "client/session/log_line.h"

namespace eplb {

PlacementTables::PlacementTables(const RunningPlacement& running, GpuId gpu) {
  const Topology& topology = running.placement->topology();
  view_.num_layers = topology.num_layers();
  view_.num_experts = topology.num_experts();
  view_.num_slots = topology.num_slots();
  view_.first_local_slot = topology.FirstSlotOf(gpu).value;
  view_.num_local_slots = topology.SlotsOf(gpu);
  view_.max_replicas = topology.num_slots() - topology.num_experts() + 1;
  const auto layers = static_cast<size_t>(topology.num_layers());
  const auto experts = static_cast<size_t>(topology.num_experts());
  physical_to_logical_.resize(layers * static_cast<size_t>(topology.num_slots()));
  replica_count_.resize(layers * experts);
  logical_to_physical_.resize(layers * experts * static_cast<size_t>(view_.max_replicas));
  view_.physical_to_logical_map = physical_to_logical_;
  view_.logical_replica_count = replica_count_;
  view_.logical_to_physical_map = logical_to_physical_;
  Update(running);
}

void PlacementTables::Update(const RunningPlacement& running) {
  const Placement& placement = *running.placement;
  const IndexMatrix& slots = placement.physical_to_logical_map();
  const IndexMatrix& counts = placement.logical_replica_count();
  std::copy_n(slots.data(), slots.size(), physical_to_logical_.begin());
  std::copy_n(counts.data(), counts.size(), replica_count_.begin());
  std::ranges::fill(logical_to_physical_, -1);
  auto row = logical_to_physical_.begin();
  for (int32_t layer = 0; layer < view_.num_layers; ++layer) {
    for (int32_t expert = 0; expert < view_.num_experts; ++expert, row += view_.max_replicas) {
      const auto replicas = placement.ReplicasOf(LayerId{layer}, ExpertId{expert});
      std::copy(replicas.begin(), replicas.end(), row);
    }
  }
  view_.version = running.version;
  view_.digest = running.digest.Hex();
}

ShownPlacement::ShownPlacement(RunningPlacement running, GpuId gpu)
    : gpu_(gpu),
      running_(std::move(running)),
      tables_(running_, gpu),
      splits_(running_.placement, running_.version) {}

absl::Status ShownPlacement::MakeRouteTables(const RowMemory& memory) {
  EPLB_RETURN_IF_ERROR(LoadTokenKernels(memory));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> queue, MakeQueueFor(memory));
  EPLB_ASSIGN_OR_RETURN(route_tables_,
                        RouteTables::Make(std::move(queue), *running_.placement, gpu_));
  memory_ = memory;
  const RouteArrays& arrays = route_tables_->arrays();
  const Topology& topology = running_.placement->topology();
  device_tables_ = {.num_layers = topology.num_layers(),
                    .num_experts = topology.num_experts(),
                    .num_slots = topology.num_slots(),
                    .physical_to_logical_map = arrays.physical_to_logical,
                    .logical_replica_count = arrays.replica_count,
                    .replicas = arrays.replicas,
                    .first_replica = arrays.first_replica,
                    .candidates = arrays.candidates,
                    .first_candidate = arrays.first_candidate,
                    .thresholds = arrays.thresholds};
  return absl::OkStatus();
}

absl::Status ShownPlacement::UpdateRouteTables(const Placement& target,
                                               std::span<const LayerId> layers, void* stream) {
  EPLB_RETURN_IF_ERROR(route_tables_->Update(target, layers, stream));
  GpuSplitTables* const tables = prepared_ == nullptr ? nullptr : prepared_->loop->gpu_tables();
  return tables == nullptr ? absl::OkStatus() : tables->Update(target, layers, stream);
}

absl::Status ShownPlacement::RenewSplitTables(void* stream) {
  GpuSplitTables* const tables = prepared_ == nullptr ? nullptr : prepared_->loop->gpu_tables();
  if (tables == nullptr) return absl::OkStatus();
  prepared_->loop->LogRefusal();
  return tables->Renew(stream);
}

absl::Status ShownPlacement::PrepareSplits(const SplitSetup& setup, bool takes_sums) {
  if (!has_route_tables()) {
    return FailedPrecondition("prepare_split was called before register_experts");
  }
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<SplitLoop> loop,
                        SplitLoop::Make(setup, {.topology = running_.placement->topology(),
                                                .self = gpu_,
                                                .device = memory_.device,
                                                .tables = device_tables_,
                                                .table_numbers = route_tables_->arrays().number,
                                                .newest_numbers = route_tables_->newest_numbers(),
                                                .takes_sums = takes_sums,
                                                .splits = splits_,
                                                .queue = route_tables_->queue()}));
  const std::scoped_lock alone(split_calls_);
  prepared_ = std::make_unique<PreparedSplits>(
      PreparedSplits{.arrays = ArraysInMemory(memory_), .loop = std::move(loop)});
  return absl::OkStatus();
}

void ShownPlacement::RecordSplits(bool reports, LoadWindows& windows) {
  if (prepared_ == nullptr) return;
  for (int32_t layer = 0; layer < tables_.view().num_layers; ++layer) {
    const std::optional<SplitSums> sums = prepared_->loop->TakeSums(layer, *running_.placement);
    if (sums.has_value() && sums->tokens == 0) continue;
    // The sum of a window whose tokens exceed 2^63-1 is as unknown as that of a late batch.
    if (sums.has_value() && windows.RecordSplits(layer, *sums).ok()) continue;
    (void)windows.RecordSplits(layer, SplitSums{});
    if (!reports || std::exchange(prepared_->has_logged_loss, true)) continue;
    LogLine(absl::StrCat(
        "step_boundary does not report the splits of layer ", layer,
        ", so that the load window is measured in equal shares: a batch was late, refused, still "
        "on the stream or from before a switch, or a kernel split more than ",
        cuda::kNotedBatches, " in the step; split_figures counts late and refused batches"));
  }
}

void ShownPlacement::ForgetSplits() {
  if (prepared_ == nullptr) return;
  for (int32_t layer = 0; layer < tables_.view().num_layers; ++layer) {
    (void)prepared_->loop->TakeSums(layer, *running_.placement);
  }
}

absl::StatusOr<SplitCall> ShownPlacement::BeginSplitCall(const char* name) {
  SplitCall call{.alone = std::unique_lock(split_calls_, std::try_to_lock), .splits = nullptr};
  if (!call.alone.owns_lock()) {
    return FailedPrecondition(name,
                              " was called while another thread was inside count_for, route_from "
                              "or prepare_split");
  }
  if (prepared_ == nullptr) {
    return FailedPrecondition(name, " was called before prepare_split");
  }
  call.splits = prepared_.get();
  return call;
}

RunningPlacement ShownPlacement::AsCurrent(const Placement& placement) const {
  return {.version = running_.version,
          .digest = DigestOf(placement),
          .placement = std::make_shared<const Placement>(placement)};
}

void ShownPlacement::Switch(RunningPlacement running) {
  running_ = std::move(running);
  tables_.Update(running_);
  splits_.Show(running_.placement, running_.version);
}

void ShownPlacement::Show(const Placement& placement) {
  const RunningPlacement shown = AsCurrent(placement);
  tables_.Update(shown);
  splits_.Show(shown.placement, shown.version);
}

void ShownPlacement::SetRows(const Placement& placement) {
  if (placement == *running_.placement) {
    carried_.reset();
    return;
  }
  const RunningPlacement rows = AsCurrent(placement);
  carried_ = rows.placement;
  if (row_tables_ == nullptr) {
    row_tables_ = std::make_unique<PlacementTables>(rows, gpu_);
  } else {
    row_tables_->Update(rows);
  }
}

}  // namespace eplb
