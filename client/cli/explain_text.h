// `eplbctl explain` as text, and the parts of it that `top` and `diff` show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "client/cli/explanation.h"
#include "client/cli/gpu_picture.h"
#include "client/cli/terminal.h"
#include "placement/migration_plan.h"

namespace eplb::cli {

// Number of transfers that a text lists; JSON has them all.
inline constexpr size_t kTransfersShown = 40;

// "12 (GPU 0 -> 3)".
std::string TransferText(const Transfer& transfer);

// "and 1,234 more (-o json lists all)"; empty if all `count` are shown.
std::string MoreTransfersText(size_t count);

// The worst balanced layers, at most `most`, with their hottest GPU and expert; empty without
// figures.
std::string WorstLayers(const Explanation& explanation, size_t most, const Terminal& terminal);

// Draws the loads of the job's GPUs as multiples of the mean afterwards, which it fills in with the
// unusable GPUs; empty without load.
std::string DrawJobLoads(const Explanation& explanation, GpuPicture picture,
                         const Terminal& terminal);

std::string ExplainJob(const Explanation& explanation, const Terminal& terminal);
// REQUIRES: the job has the layer, and explanation.shown() is not null.
std::string ExplainLayer(const Explanation& explanation, int32_t layer, const Terminal& terminal);
// REQUIRES: also that the job has the expert.
std::string ExplainExpert(const Explanation& explanation, int32_t layer, int32_t expert,
                          const Terminal& terminal);

}  // namespace eplb::cli
