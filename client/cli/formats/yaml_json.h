// YAML read as JSON, so that one strict reader checks types, ranges and keys given twice.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace eplb {

inline constexpr size_t kMaxYamlBytes = size_t{1} << 26;

// Returns one YAML document as JSON: plain decimal integers are numbers, every other scalar is a
// string. errors: InvalidArgument naming line and column: not YAML, more than one document, larger
// than kMaxYamlBytes, an anchor or alias (a few lines of them expand to gigabytes), a tag, a key
// that is no scalar. Throws nothing.
absl::StatusOr<std::string> YamlToJson(std::string_view yaml);

}  // namespace eplb
