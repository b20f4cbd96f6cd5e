// A trace in two parts: a placement is planned on the earlier windows and scored on the later ones,
// because a score on the load that it was made for is too good.
// threads: safe, no state.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "client/cli/formats/load_window.h"
#include "placement/load.h"

namespace eplb::cli {

struct HeldOut {
  std::span<const LoadWindow> planned;  // the earlier half, rounded up; all windows of one
  std::vector<Load> scored;             // the later half; the same window if there is only one
  double scored_steps = 0;
  bool out_of_sample = false;  // there are later windows
  bool planned_on_tokens = false;
  bool scored_on_tokens = false;
};

// windows: at least one, which must outlive the result.
HeldOut HoldOut(std::span<const LoadWindow> windows);

// "Planned on windows 0..4, scored on windows 5..9 (no tokens)", for a sentence.
// REQUIRES: out_of_sample.
std::string ScoredOnText(const HeldOut& held_out);

}  // namespace eplb::cli
