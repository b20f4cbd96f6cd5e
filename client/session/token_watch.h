// Notices that this rank counts no tokens, so that its trainer learns it at the next boundary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/wire/messages.h"

namespace eplb {

// Threads: the training thread.
class TokenWatch {
 public:
  // Whole windows in a row without a token, after which a layer counts nothing.
  static constexpr int kSilentWindows = 2;
  static constexpr int64_t kSilentSteps = 8;  // these windows together have at least so many steps

  TokenWatch() = default;  // watches nothing
  // layers: those that this rank counts, rising, below num_layers.
  TokenWatch(int32_t rank, std::vector<int32_t> layers, int32_t num_layers);

  // The trainer recorded counts of the layer, zeros or not.
  void Recorded(int32_t layer);
  // Takes over a window that ended. is_whole: false for the shorter first window, which begins no
  // silence. Returns true if reason() is another one now, and not empty. cost: O(L * E).
  // REQUIRES: the window's counts are not packed.
  bool EndWindow(const wire::LoadReport& window, bool is_whole);
  // "NOT_COUNTING: ", the rank, its layers without tokens, and what it recorded of them. Empty
  // while all layers count.
  const std::string& reason() const { return reason_; }

 private:
  struct Layer {
    bool is_silent() const { return windows >= kSilentWindows && steps >= kSilentSteps; }

    int32_t layer = 0;
    int windows = 0;    // in a row without a token
    int64_t steps = 0;  // steps of these windows
    bool recorded = false;
    int64_t since = 0;  // first step of these windows
  };
  std::string ReasonNow() const;

  int32_t rank_ = 0;
  std::vector<Layer> layers_;      // watched
  std::vector<int32_t> position_;  // [num_layers], in layers_; -1: not watched
  std::string reason_;
};

}  // namespace eplb
