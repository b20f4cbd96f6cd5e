// Tokens of experts, counted from a router's single choices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "client/cli/formats/arrays.h"
#include "client/cli/formats/load_window.h"

namespace eplb {

// Counts the choices of a routing replay, integers [tokens, layers, top-k], as one window. A number
// below 0 is no expert. errors: InvalidArgument: no such array, an expert of `num_experts` or
// above, too many counts.
absl::StatusOr<LoadWindow> CountChoices(const Array& array, int32_t num_experts);

// Router traces of Megatron-Core: a file for each rank, in each line {"step","layer",
// "top_indices":[tokens][top-k]}, with "block" and "mtp_idx" if heads predict further tokens.

// True for a directory with files router_trace_rankN.jsonl.
bool HoldsRouterTraces(const std::string& path);
// True for the content of such a file.
bool IsRouterTrace(std::string_view bytes);

// Reads the file at `path`, or those in a directory, whose counts are summed over ranks. Each step
// is a window, and a layer that a step does not have got no tokens. Rows are the layers in order,
// the heads last; without heads LoadFile::layers has their numbers.
// errors, beginning with the file's path: as ReadRegularFile; InvalidArgument naming the line: no
// such record, an expert of `num_experts` or above, too many counts.
absl::StatusOr<LoadFile> ReadRouterTraces(const std::string& path,
                                          std::optional<int32_t> num_experts);

}  // namespace eplb
