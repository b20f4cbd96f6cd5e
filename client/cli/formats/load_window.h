// The windows of a load file or trace, and how they become one load.
// threads: safe, no state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/load.h"

namespace eplb {

// The steps are the window's index if the format has none.
struct LoadWindow {
  int64_t first_step = 0;
  int64_t last_step = 0;
  Load load;
  int64_t line = 0;  // in the file, if each window is a line; otherwise 0
};

// How a file holds its numbers. A word such as "load" marks a named one; a table has none.
enum class TableKind { kNamed, kArray, kCsv };

// A load file or trace.
struct LoadFile {
  std::vector<LoadWindow> windows;      // at least one, oldest first, all of one shape
  std::vector<std::string> notes = {};  // losses and doubts, a sentence each
  bool counts_model_layers = false;     // rows for the dense layers too, as sglang writes
  bool has_steps = false;               // step numbers of windows are the file's
  std::vector<int32_t> layers = {};     // the model's number of each row; empty: not known
  TableKind table = TableKind::kNamed;
};

// The windows as a file. errors: those of `windows`.
absl::StatusOr<LoadFile> LoadFileOf(absl::StatusOr<std::vector<LoadWindow>> windows,
                                    TableKind table = TableKind::kNamed);

// errors: InvalidArgument unless `window` is later than `before`, does not overlap and has its
// shape.
absl::Status CheckFollows(const LoadWindow& before, const LoadWindow& window);

struct WindowRule {
  enum class Kind { kSum, kLast, kEma };
  Kind kind = Kind::kSum;
  double decay = 0;  // kEma: estimate = decay * estimate + (1 - decay) * window, oldest first
};

// "sum", "last" or "ema:A" with 0 <= A <= 1. errors: InvalidArgument.
absl::StatusOr<WindowRule> ParseWindowRule(std::string_view text);

// One load from windows of one shape: the last alone, or as CombineLoads. errors: as CombineLoads.
absl::StatusOr<Load> CombineWindows(std::span<const LoadWindow> windows, const WindowRule& rule);

// The windows that such a load is made of, oldest first: batches of their own.
std::vector<Load> BatchesOf(std::span<const LoadWindow> windows, const WindowRule& rule);

// Checks that each of these batches can be split exactly: at most `most` tokens in a layer.
// errors: InvalidArgument naming line or window, layer and the sum. cost: O(windows * L * E).
absl::Status CheckBatches(std::span<const LoadWindow> windows, int64_t most);

}  // namespace eplb
