// The history of a job's loads as a few typical loads, each the mean of similar windows. Loads that
// return after a long time, as day and night do, are still known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "placement/load.h"

namespace eplb {

struct TypicalLoad {
  std::shared_ptr<const Load> load;  // [L, E], mean over its windows
  double num_steps = 1;              // mean over its windows
  double num_windows = 1;            // number of its windows; older ones count less
  int64_t age = 0;                   // windows since the newest of its own
};

inline constexpr size_t kMaxTypicalLoads = 6;

// Threads: a value, not safe. Memory: kMaxTypicalLoads loads.
class LoadHistory {
 public:
  LoadHistory() = default;
  // loads: as `loads()` returned them.
  explicit LoadHistory(std::vector<TypicalLoad> loads) : loads_(std::move(loads)) {}

  // Adds a window, whose weight halves with every 128 later ones. Beyond kMaxTypicalLoads a load is
  // forgotten that stands for less than 4 windows, none of them among the newest 16: an outlier, or
  // part of a start that will not return. If there is none, the two most similar loads become one,
  // by the distance of scenario_medoids.h. A window of another shape than those before begins the
  // history anew. Windows without tokens are ignored. cost: O(kMaxTypicalLoads^2 * L * E).
  void Add(std::shared_ptr<const Load> window, double num_steps);

  // In the order in which they were first seen.
  std::span<const TypicalLoad> loads() const { return loads_; }

 private:
  std::vector<TypicalLoad> loads_;
};

}  // namespace eplb
