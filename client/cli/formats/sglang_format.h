// The JSON of SGLang's --init-expert-location. Its rows are the model's layers: the dense ones in
// front have rows too, a map with the experts in order and counts of 0.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_FORMATS_SGLANG_FORMAT_H_
#define EPLB_CLIENT_CLI_FORMATS_SGLANG_FORMAT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "base/json_value.h"
#include "client/cli/formats/format_table.h"
#include "client/cli/formats/load_window.h"

namespace eplb {

// {"physical_to_logical_map":[L][S]}, all rows of the file. errors: begin with `path`.
absl::StatusOr<PlacementParts> ParseSglangPlacement(const std::string& path,
                                                    std::string_view bytes);
// With rows for the dense layers before and between options.layers; none if these are not known.
absl::StatusOr<std::string> WriteSglangPlacement(const Placement& placement,
                                                 const WriteOptions& options);

// True for an object with logical_count.
bool IsSglangLoad(const wire::JsonValue& value);

// {"logical_count":[L][E]}, or [steps][L][E] of which each step is a window, or such an array
// alone. errors: without path.
absl::StatusOr<std::vector<LoadWindow>> SglangLoad(const wire::JsonValue& value);

}  // namespace eplb

#endif  // EPLB_CLIENT_CLI_FORMATS_SGLANG_FORMAT_H_
