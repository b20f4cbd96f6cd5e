// A duration on the command line.
#ifndef EPLB_CLIENT_CLI_DURATION_FLAG_H_
#define EPLB_CLIENT_CLI_DURATION_FLAG_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eplb::cli {

// "5s", "500ms" or a number of seconds; above 0, at most `most`. errors: InvalidArgument naming
// `flag`.
absl::StatusOr<absl::Duration> ParseDuration(const std::string& flag, const std::string& text,
                                             absl::Duration most = absl::Hours(1));

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DURATION_FLAG_H_
