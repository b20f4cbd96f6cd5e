// Our own placement files, eplb.placement.v1, as one of the formats.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_FORMATS_EPLB_FORMAT_H_
#define EPLB_CLIENT_FILES_FORMATS_EPLB_FORMAT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "client/files/formats/format_table.h"

namespace eplb {

// errors: begin with `path`.
absl::StatusOr<PlacementParts> ParseEplbPlacement(const std::string& path, std::string_view bytes);
absl::StatusOr<std::string> WriteEplbPlacement(const Placement& placement,
                                               const WriteOptions& options);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_FORMATS_EPLB_FORMAT_H_
