// Loads written as JSON: a matrix, one for each step, eplb.load.v1, JSON lines of windows; and
// those of SGLang, vLLM and vllm-ascend. threads: safe, no state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "base/json_value.h"
#include "client/cli/formats/load_window.h"

namespace eplb {

// Oldest first, all of one shape. An integer matrix is exact counts; one number with a point or an
// exponent makes it estimates.
// errors, beginning with `path`: InvalidArgument for text that is not JSON, ragged rows, what
// Load refuses, integers above 2^63-1, windows of different shapes, out of order or with steps that
// the window before covers too, a schema that is none of these (saying what was tried).
// cost: O(text); one window is held twice while it is read.
absl::StatusOr<LoadFile> ParseLoadJson(const std::string& path, std::string_view text);

// The same, and the loads of other systems that a key tells: logical_count, record_type.
absl::StatusOr<LoadFile> ParseAnyLoadJson(const std::string& path, std::string_view text);

// A load [L][E], or with StepsFromJson several of one shape [steps][L][E], a window each; `name`
// stands before messages. errors: InvalidArgument, naming the cell, as above.
absl::StatusOr<Load> LoadFromJson(const wire::JsonValue& value, std::string_view name);
absl::StatusOr<std::vector<LoadWindow>> StepsFromJson(const wire::JsonValue& value,
                                                      std::string_view name);

// The last sentence of a message about a file of no known schema.
std::string KnownLoadFormats();

}  // namespace eplb
