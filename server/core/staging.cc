#include "server/core/staging.h"

#include <algorithm>

namespace eplb::core {

int64_t LeastStagingRows(const Incarnation& incarnation) {
  return std::min_element(
             incarnation.ranks.begin(), incarnation.ranks.end(),
             [](const Rank& a, const Rank& b) { return a.staging_rows < b.staging_rows; })
      ->staging_rows;
}

int32_t LayersPerChunk(const Job& job) {
  int64_t layers = job.settings.layers_per_chunk;
  for (const Rank& rank : job.current->ranks) {
    if (rank.staging_layers > 0) layers = std::min(layers, rank.staging_layers);
  }
  return static_cast<int32_t>(layers);
}

}  // namespace eplb::core
