// JSON lines that open pull requests of vLLM propose: records of the load, and a start map. vLLM
// 0.33.0 neither writes nor reads them.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_FORMATS_VLLM_FORMAT_H_
#define EPLB_CLIENT_CLI_FORMATS_VLLM_FORMAT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "base/json_value.h"
#include "client/cli/formats/format_table.h"
#include "client/cli/formats/load_window.h"

namespace eplb {

// True for an object with record_type.
bool IsVllmRecord(const wire::JsonValue& value);

// The one eplb_initial_mapping, whose keys are MoE layers from 0; an eplb_load_meta beside it tells
// ranks, nodes and expert groups. errors: begin with `path`, name the line.
absl::StatusOr<PlacementParts> ParseVllmPlacement(const std::string& path, std::string_view bytes);
absl::StatusOr<std::string> WriteVllmPlacement(const Placement& placement,
                                               const WriteOptions& options);

// Each eplb_load_stats is a window: the loads of the slots, added up for the experts that the
// record's own p2l_map says they hold. Records of other types are skipped, with a note. errors:
// begin with `path`, name the line.
absl::StatusOr<LoadFile> ParseVllmLoad(const std::string& path, std::string_view bytes);

}  // namespace eplb

#endif  // EPLB_CLIENT_CLI_FORMATS_VLLM_FORMAT_H_
