// An explanation as text and as JSON.
#ifndef EPLB_CLIENT_CLI_DAEMON_EXPLAIN_TEXT_H_
#define EPLB_CLIENT_CLI_DAEMON_EXPLAIN_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "client/cli/daemon/explanation.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

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

#endif  // EPLB_CLIENT_CLI_DAEMON_EXPLAIN_TEXT_H_
