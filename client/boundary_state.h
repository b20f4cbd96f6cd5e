// The boundary that a rank is in: when it and its switch began, its stream and its times.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

#include "base/monotonic_clock.h"
#include "client/run_log/boundary_times.h"

namespace eplb {

// Times are MonotonicNow().
struct BoundaryState {
  void AddSpan(std::string_view name, absl::Time span_began) {
    if (timer) timer->AddSpan(name, span_began);
  }
  void SetOutcome(std::string_view outcome) {
    if (timer) timer->SetOutcome(outcome);
  }
  // Returns the seconds since the ranks agreed on the chunk. The wait for the slowest rank before
  // that vote is not included.
  double SecondsInSwitch() const { return absl::ToDoubleSeconds(MonotonicNow() - switch_began); }

  absl::Time began = {};
  absl::Time switch_began = {};
  std::optional<BoundaryTimer> timer = {};  // set if this rank is PREPARED and writes a log
  void* stream = nullptr;                   // cudaStream_t of the current call
  std::string no_reason = {};  // reason to vote no in the next vote; empty: this rank may vote yes
};

}  // namespace eplb
