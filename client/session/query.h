// What a starting rank asks the daemon.
#ifndef EPLB_CLIENT_SESSION_QUERY_H_
#define EPLB_CLIENT_SESSION_QUERY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/wire/messages.h"
#include "proto/wire/tls_files.h"

namespace eplb {

struct StoredPlacement {
  wire::PlacementBody body;
  int64_t next_version = 0;  // above every version ever given out under the job's name
};

// The placement that the daemon has stored for a job. Waits up to `timeout` for a daemon that is
// not there yet. errors: NotFound for a job it does not know; DeadlineExceeded, Unavailable;
// InvalidArgument naming a file of `tls`.
absl::StatusOr<StoredPlacement> FetchPlacement(const std::string& endpoint,
                                               const wire::TlsFiles& tls, const std::string& job,
                                               absl::Duration timeout);

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_QUERY_H_
