// Tells the format of a placement file from its content.
// threads: safe, no state.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/formats/format_table.h"

namespace eplb {

// The format whose magic, keys or rows the file has. errors: InvalidArgument, beginning with
// `path`, for a file of none of them.
absl::StatusOr<PlacementFormat> DetectPlacementFormat(const std::string& path,
                                                      std::string_view bytes);

// For readers of our own placements alone: returns `error`, or if the file at `path` is a placement
// of another system, an error that names the system and the command that converts it.
absl::Status NameForeignPlacement(const std::string& path, const absl::Status& error);

}  // namespace eplb
