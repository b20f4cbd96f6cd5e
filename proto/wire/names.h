// Names of jobs, runs and requests, which are checked before they are sent.
#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"

namespace eplb::wire {

inline constexpr size_t kMaxNameLength = 128;  // longest name of a job or a run
inline constexpr size_t kMaxRequestIdLength = 64;

// Checks the name of a job or a request: [1, max_length] characters of [A-Za-z0-9._-].
// errors: InvalidArgument beginning with `field`.
absl::Status CheckPlainName(std::string_view field, std::string_view name,
                            size_t max_length = kMaxNameLength);
// Checks the name of a run: [1, kMaxNameLength] characters of printable ASCII.
// errors: InvalidArgument beginning with `field`.
absl::Status CheckPrintableName(std::string_view field, std::string_view name);

}  // namespace eplb::wire
