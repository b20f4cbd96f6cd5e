// A placement that is replaced chunk by chunk, as the daemon cuts a change: a layer runs as before
// until the step at which its chunk is in force.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/backtest/switch_time.h"
#include "placement/evaluate.h"
#include "placement/migration_plan.h"
#include "placement/placement.h"

namespace eplb {

// Rows that moved, and their price.
struct MovedRows {
  int64_t transfers = 0;
  int64_t bytes = 0;
  double seconds = 0;
  int64_t chunks = 0;  // chunks that they begin
};

// A window under the placements that ran: means over its steps.
struct SwitchedWindow {
  Evaluation seen;
  double seconds = 0;  // price of the layers that were switched
};

struct Change {
  Placement target;
  std::vector<double> falls;     // [L], fall of each layer's peak load
  MigrationOptions expert = {};  // bytes of an expert
  double seconds = 0;            // price of the whole change
};

// Threads: a value, not safe. Deterministic.
class Switching {
 public:
  using Evaluate = std::function<absl::StatusOr<Evaluation>(const Placement&)>;

  // model_layers: layers of the model, which those of `start` stand for in equal parts.
  Switching(const Placement& start, int32_t model_layers);

  // The placement once every chunk is current, and the one that runs now.
  const Placement& target() const { return *target_; }
  const Placement& running() const { return running_; }
  // Returns true if every chunk is current.
  bool done() const { return due_.empty(); }
  // First step that runs under `target` alone. REQUIRES: !done().
  int64_t done_at() const { return due_.back().step; }
  int64_t num_chunks() const { return num_chunks_; }  // chunks of the newest change
  int64_t num_chunks_due() const;                     // those that are not current
  // First step that runs under a chunk of the newest change. REQUIRES: num_chunks_due() > 0.
  int64_t begins_at() const;

  // A decision at the end of the window before `step` replaces the layers that are in no chunk yet:
  // the chunk in flight stays, and those that are in force before the ranks hold the new proposal.
  // `target` is what is left. Returns the rows that will not move.
  absl::StatusOr<MovedRows> Interrupt(const SwitchTime& time, int64_t step);
  // Begins to switch to change.target, the layers first whose peak falls most for each byte. A
  // layer that alone takes longer than a pause takes as many chunks as it needs.
  // errors: those of PlanTransfers. cost: a PlanTransfers of each layer that differs.
  absl::Status Begin(const Change& change, const SwitchTime& time, int64_t step);

  // Evaluates the next window, which begins at step `first`, and passes to its end. evaluate:
  // figures of the window's load under one placement. errors: its own. cost: one call for each
  // placement that ran.
  absl::StatusOr<SwitchedWindow> Pass(int64_t first, int64_t num_steps, const Evaluate& evaluate);

 private:
  // A part of a layer that is switched before `step`.
  struct Due {
    int64_t step = 0;
    int32_t layer = 0;
    double part = 1;
    std::shared_ptr<const Placement> target;
    MovedRows rows;
    bool passed = false;
  };
  struct LayerChange {
    int32_t layer = 0;
    double value = 0;                // fall of the peak load for each byte
    std::vector<int32_t> rows = {};  // [G], rows of staging
    double pause_seconds = 0;
    MovedRows moved = {};
  };
  class Chunk;

  absl::StatusOr<std::vector<LayerChange>> ChangesTo(const Change& change,
                                                     const SwitchTime& time) const;
  int64_t FirstBoundary(const SwitchTime& time, int64_t step) const;
  void Schedule(std::span<const LayerChange> changes, const SwitchTime& time, int64_t step);
  absl::Status Fold(int64_t end);

  Placement running_;
  std::shared_ptr<const Placement> target_;
  std::vector<int32_t> copies_;  // [L], layers of the model that a layer stands for
  std::vector<Due> due_;         // by step
  int64_t num_chunks_ = 0;
  int64_t active_from_ = 0;  // the start, or the newest switch
};

}  // namespace eplb
