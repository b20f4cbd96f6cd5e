// An explanation as text and as JSON.
#ifndef EPLB_CLIENT_CLI_EXPLAIN_TEXT_H_
#define EPLB_CLIENT_CLI_EXPLAIN_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "client/cli/explain.h"
#include "client/cli/terminal.h"
#include "placement/migration_plan.h"

namespace eplb::cli {

// Transfers between GPUs as words of a sentence. Tables are for people, who read some of them; JSON
// has them all.

inline constexpr size_t kTransfersShown = 40;

// "12 (GPU 0 -> 3)".
std::string TransferText(const Transfer& transfer);

// "and 1,234 more (-o json lists all)"; empty when all `count` are shown.
std::string MoreTransfersText(size_t count);

// The worst balanced layers, at most `most`, with their hottest GPU and expert; empty without
// figures.
std::string WorstLayers(const Explanation& explanation, size_t most, const Terminal& terminal);

std::string ExplainJob(const Explanation& explanation, const Terminal& terminal);
// REQUIRES: a layer of the job, and figures of it.
std::string ExplainLayer(const Explanation& explanation, int32_t layer, const Terminal& terminal);
// REQUIRES: likewise, and an expert of the job.
std::string ExplainExpert(const Explanation& explanation, int32_t layer, int32_t expert,
                          const Terminal& terminal);

// layer, expert: < 0 for none.
std::string ExplanationToJson(const Explanation& explanation, int32_t layer, int32_t expert);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_EXPLAIN_TEXT_H_
