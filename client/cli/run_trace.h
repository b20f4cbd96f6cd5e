// All boundaries of a run as a trace, as its ranks logged them. The trace shows only what is known
// to have happened; "not_known" in its metadata lists what is missing.
#ifndef EPLB_CLIENT_CLI_RUN_TRACE_H_
#define EPLB_CLIENT_CLI_RUN_TRACE_H_

#include <span>
#include <string>

#include "client/run_log/run_directory.h"

namespace eplb::cli {

// A process for each rank: when it became PREPARED, its boundaries with votes, transfer, commit and
// rebuild, and the rounds of the transfer on tracks of their own, because rounds may overlap.
// directory: named in the metadata. cost: O(spans log spans).
std::string RunTrace(const std::string& directory, std::span<const RankTimeline> timelines);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_RUN_TRACE_H_
