// What the ranks' staging allows a proposal to ask of them.
#ifndef EPLB_SERVER_CORE_STAGING_H_
#define EPLB_SERVER_CORE_STAGING_H_

#include <cstdint>

#include "server/core/state.h"

namespace eplb::core {

// Experts per layer that fit into the staging of the rank that has least.
int64_t LeastStagingRows(const Incarnation& incarnation);

// Layers of a chunk: as many as the settings allow and as every rank that said so can stage.
// REQUIRES: job.current.
int32_t LayersPerChunk(const Job& job);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_STAGING_H_
