// What a starting rank asks the daemon.
#ifndef EPLB_CLIENT_SESSION_QUERY_H_
#define EPLB_CLIENT_SESSION_QUERY_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/wire/messages.h"
#include "proto/wire/tls_files.h"

namespace eplb {

// The placement that the daemon has stored for a job. Waits up to `timeout` for a daemon that is
// not there yet. errors: NotFound for a job it does not know; DeadlineExceeded, Unavailable;
// InvalidArgument naming a file of `tls`.
absl::StatusOr<wire::PlacementBody> FetchPlacement(const std::string& endpoint,
                                                   const wire::TlsFiles& tls,
                                                   const std::string& job, absl::Duration timeout);

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_QUERY_H_
