// Counts of routed tokens, summed over windows of steps, and the windows that wait for the daemon.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "client/session/split_sums.h"
#include "placement/placement.h"
#include "proto/wire/messages.h"

namespace eplb {

// The window that is being counted. It ends after the step s with (s + 1) % report_every == 0, so
// that windows of all ranks end alike whenever they began. Threads: the training thread.
class LoadWindows {
 public:
  // report_every: steps, >= 1. first_step: of the first window. version: of the current placement.
  LoadWindows(int32_t num_layers, int32_t num_experts, int32_t report_every, int64_t first_step,
              int64_t version = 0);

  // Adds counts [E] to the current step's layer. errors: InvalidArgument naming layer and expert:
  // layer out of range, wrong length, a negative count, a layer's sum above 2^63-1; nothing is
  // added then.
  absl::Status Record(int32_t layer, std::span<const int64_t> counts);

  // Adds to the compute time of the current step. errors: InvalidArgument for a time that is not in
  // 0..wire::kMaxStepSeconds; nothing is added then.
  absl::Status RecordStepTime(double seconds);

  // Adds batches that were split exactly. errors: InvalidArgument if a layer's tokens exceed
  // 2^63-1; nothing is added then. REQUIRES: layer is in range.
  absl::Status RecordSplits(int32_t layer, const SplitSums& sums);

  // Ends a step; returns the window when it was its last one. REQUIRES: steps rise by one.
  std::optional<wire::LoadReport> EndStep(int64_t step);
  // Returns true if the window ends with `step`, the current one.
  bool EndsAt(int64_t step) const { return (step + 1) % report_every_ == 0; }

  // Steps after `step` run under another placement: what was counted up to it becomes a part of the
  // window. Of more parts than kMaxLoadParts or wire::kMaxReportBytes allow none is told. REQUIRES:
  // `step` was the last one ended. cost: O(L * E).
  void Switched(int64_t step, int64_t version);

  // Windows that begin at or after pace.from_step have the new length. The change is made where a
  // window of the old length ends and one of the new length begins, which also aligns a rank that
  // receives the pace late. Ignores a length below 1.
  void SetReportInterval(const wire::SetReportInterval& pace);
  int32_t report_every() const { return report_every_; }

 private:
  int32_t report_every_;
  wire::SetReportInterval next_;  // asked for; report_every 0: nothing
  int64_t first_step_;
  LoadMatrix counts_;  // [L, E], counts of the current window
  int64_t version_;    // version of the current placement
  std::vector<wire::LoadPart> earlier_;
  LoadMatrix earlier_counts_;  // [L, E], counts of earlier_; empty while there is none
  int64_t earlier_bytes_ = 0;  // bytes of earlier_ in a report
  bool parts_unknown_ = false;
  std::vector<int64_t> layer_tokens_;  // [L], sums of the rows
  double step_seconds_ = 0;            // recorded in the window
  // [L], sums over the window's batches that were split exactly; all empty while there are none.
  std::vector<int64_t> split_tokens_;
  std::vector<int64_t> split_peaks_;
  std::vector<int64_t> split_peaks_static_;
  std::vector<int64_t> split_peaks_without_eplb_;
};

// Finished windows that wait for the daemon, newest kept. Threads: the caller's lock.
class WindowBuffer {
 public:
  // max_steps: of all windows together, >= 1; the newest window is kept whatever its length.
  explicit WindowBuffer(int64_t max_steps) : max_steps_(max_steps) {}

  // Drops and counts the oldest windows when there are more than max_steps.
  void Add(wire::LoadReport window);
  // The oldest window; its dropped_steps are those dropped since the last one taken.
  std::optional<wire::LoadReport> Take();

  int64_t dropped_steps() const { return dropped_steps_; }  // in all
  bool empty() const { return windows_.empty(); }

 private:
  int64_t max_steps_;
  int64_t steps_ = 0;  // in windows_
  int64_t dropped_steps_ = 0;
  int64_t unreported_ = 0;  // dropped since the last Take
  std::deque<wire::LoadReport> windows_;
};

}  // namespace eplb
