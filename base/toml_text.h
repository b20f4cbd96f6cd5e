// The one way from a user's TOML file to a table: toml++ 3.3 must not see every text.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 0
#include <toml++/toml.h>

namespace eplb::wire {

// file: of the messages. A mark of UTF-8 at the start of `text` is skipped.
// errors: InvalidArgument, one line: "FILE:LINE: not TOML: why". cost: O(text).
absl::StatusOr<toml::table> ParseToml(const std::string& file, std::string_view text);

}  // namespace eplb::wire
