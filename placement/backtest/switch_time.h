// Time that a job takes from the end of a load window until a new placement is in force.
#pragma once

#include <cstdint>
#include <limits>

namespace eplb {

// The layers of a change are switched in chunks. A newer decision replaces the layers that are in
// no chunk yet. A rank has room for the rows of one chunk, and a boundary may not last longer than
// the job allows. The default switches all layers at once, before the step that follows the window.
struct SwitchTime {
  // Steps from the end of a window until the ranks hold a proposal: report, solution and messages.
  double decide_steps = 0;
  // Without a proposal the ranks vote after every such number of steps, so the first chunk waits
  // for a step that this divides. While a proposal is outstanding they vote after each step.
  int32_t vote_every = 1;
  // Steps from the start and from each switch in which votes are 1, 2, 4, .. steps after a window.
  int64_t active_steps = 0;
  int32_t chunk_steps = 1;  // steps from one chunk to the next
  int64_t layers_per_chunk = std::numeric_limits<int64_t>::max();
  int64_t rows_per_chunk = std::numeric_limits<int64_t>::max();  // rows of staging of one GPU
  double max_pause_seconds = std::numeric_limits<double>::infinity();
  double seconds_per_byte = 0;  // time of the GPU that receives most

  friend bool operator==(const SwitchTime&, const SwitchTime&) = default;
};

// Settings of a job that nobody changed: defaults of the client library and of the daemon.
inline constexpr int32_t kUsualVoteEvery = 8;
inline constexpr int64_t kUsualActiveSteps = 32;
inline constexpr int64_t kUsualStagingLayers = 4;  // or as many more as fit into the next
inline constexpr int64_t kUsualStagingBytes = int64_t{256} << 20;
inline constexpr int64_t kUsualLayersPerChunk = 64;
inline constexpr double kUsualMaxPauseSeconds = 0.2;

}  // namespace eplb
