// The current placement as a client shows it: maps for the host, tables for kernels, and splits.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "client/batch_splits.h"
#include "client/client.h"
#include "client/rows/route_tables.h"
#include "client/rows/row_memory.h"
#include "client/session/load_windows.h"
#include "client/session/member.h"
#include "client/split_loop.h"
#include "client/tokens.h"

namespace eplb {

// The arrays behind a PlacementView, which keep their addresses.
// Memory: L * (S + E * (S - E + 2)) int32.
class PlacementTables {
 public:
  PlacementTables(const RunningPlacement& running, GpuId gpu);
  PlacementTables(const PlacementTables&) = delete;
  PlacementTables& operator=(const PlacementTables&) = delete;

  // Writes another placement of the same shape into the arrays.
  void Update(const RunningPlacement& running);
  const PlacementView& view() const { return view_; }

 private:
  std::vector<int32_t> physical_to_logical_;  // [L, S]
  std::vector<int32_t> replica_count_;        // [L, E]
  std::vector<int32_t> logical_to_physical_;  // [L, E, S - E + 1], -1 padded
  PlacementView view_;
};

// Parts that Client::PrepareSplit makes.
struct PreparedSplits {
  ArraysInMemory arrays;
  std::unique_ptr<SplitLoop> loop;
  bool has_logged_loss = false;  // a batch that is not recorded
};

// A call of count_for or route_from; while it lasts, other threads cannot make one.
struct SplitCall {
  std::unique_lock<std::mutex> alone;
  PreparedSplits* splits;
};

// Threads: the training thread, except split_figures.
class ShownPlacement {
 public:
  ShownPlacement(RunningPlacement running, GpuId gpu);

  const RunningPlacement& running() const { return running_; }
  const PlacementView& view() const { return tables_.view(); }
  const DeviceTables& device_tables() const { return device_tables_; }
  BatchSplits& splits() { return splits_; }
  // The placement of the rows, which Carry may have moved, and its view.
  const Placement& rows() const { return is_carried() ? *carried_ : *running_.placement; }
  const PlacementView& row_view() const { return is_carried() ? row_tables_->view() : view(); }
  bool is_carried() const { return carried_ != nullptr; }

  // Makes the tables for kernels in the memory of the registered rows. errors: as RouteTables::Make
  // and LoadTokenKernels.
  absl::Status MakeRouteTables(const RowMemory& memory);
  // The queue that uploads these tables. REQUIRES: MakeRouteTables returned OK.
  cuda::RowQueue& queue() const { return route_tables_->queue(); }
  bool has_route_tables() const { return route_tables_ != nullptr; }
  // errors: as RouteTables::Update. REQUIRES: MakeRouteTables returned OK.
  absl::Status UpdateRouteTables(const Placement& target, std::span<const LayerId> layers,
                                 void* stream);
  // Lets kernels split by the newest options, in the order of `stream`. errors: as
  // UpdateRouteTables.
  absl::Status RenewSplitTables(void* stream);
  // The process keeps the tables for kernels for good, because freeing them would wait for the GPU.
  void LeakRouteTables() {
    if (prepared_ != nullptr) prepared_->loop->Stop();
    (void)prepared_.release();
    (void)route_tables_.release();
  }

  // takes_sums: RecordSplits is called after each step. errors: as SplitLoop::Make;
  // FailedPrecondition before MakeRouteTables.
  absl::Status PrepareSplits(const SplitSetup& setup, bool takes_sums);
  // errors: FailedPrecondition, naming the call, before PrepareSplits, and while another thread is
  // inside such a call.
  absl::StatusOr<SplitCall> BeginSplitCall(const char* name);
  // Adds the batches that route_from split since the last call. A layer with a batch that is not
  // known to have run as split counts as zero, so that the daemon misses its tokens. Logs the first
  // one, if this rank reports.
  void RecordSplits(bool reports, LoadWindows& windows);
  // Drops the batches since the last RecordSplits, which no step has.
  void ForgetSplits();
  // Arrays of count_for and route_from are checked anew, because their memory may have been freed.
  void ForgetArrays() {
    const std::scoped_lock alone(split_calls_);
    if (prepared_ != nullptr) prepared_->arrays.Forget();
  }
  void StopSplits() {
    if (prepared_ != nullptr) prepared_->loop->Stop();
  }
  SplitLoopFigures split_figures() const {
    return prepared_ == nullptr ? SplitLoopFigures{} : prepared_->loop->figures();
  }

  // Shows and splits by another placement of the same shape.
  void Switch(RunningPlacement running);
  // Shows `placement` under the current version, and splits by it, until the next call.
  void Show(const Placement& placement);
  // Shows `placement` under the current version to the host alone.
  void ShowMaps(const Placement& placement) { tables_.Update(AsCurrent(placement)); }
  // Sets the placement to which Carry moved the rows.
  void SetRows(const Placement& placement);

 private:
  RunningPlacement AsCurrent(const Placement& placement) const;

  const GpuId gpu_;
  RunningPlacement running_;
  PlacementTables tables_;
  BatchSplits splits_;
  std::shared_ptr<const Placement> carried_;     // null: the rows are where running_ has them
  std::unique_ptr<PlacementTables> row_tables_;  // tables of carried_, from the first Carry on
  std::unique_ptr<RouteTables> route_tables_;    // null before MakeRouteTables
  RowMemory memory_;                             // memory of route_tables_
  DeviceTables device_tables_;
  std::unique_ptr<PreparedSplits> prepared_;  // null before PrepareSplits
  std::mutex split_calls_;                    // held by a SplitCall
};

}  // namespace eplb
