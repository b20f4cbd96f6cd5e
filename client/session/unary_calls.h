// Calls of a starting rank to the daemons, outside of its stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/tls_files.h"
#include "proto/wire/messages.h"

namespace eplb {

struct StoredPlacement {
  wire::PlacementBody body;
  int64_t next_version = 0;  // above every version ever given out under the job's name
  std::string endpoint;      // daemon that gave the answer
};

// Returns the placement that the daemons have stored for a job. Asks each daemon, and waits up to
// `timeout` until it listens. While all that answer stand by, asks again for up to twice that time.
// The answer with the higher next_version is newer. errors: NotFound if no daemon that answers has
// the job; DeadlineExceeded or Unavailable of the first daemon if none answers; InvalidArgument
// naming a file of `tls`.
absl::StatusOr<StoredPlacement> FetchPlacement(const std::vector<std::string>& endpoints,
                                               const wire::TlsFiles& tls, const std::string& job,
                                               absl::Duration timeout);

// Returns a version number that no daemon gives out again, the highest that they reserve. errors:
// see FetchPlacement; Unimplemented for a daemon that reserves none.
absl::StatusOr<int64_t> ReserveVersion(const std::vector<std::string>& endpoints,
                                       const wire::TlsFiles& tls, const std::string& job,
                                       absl::Duration timeout);

}  // namespace eplb
