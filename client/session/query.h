// What a starting rank asks the daemon.
#ifndef EPLB_CLIENT_SESSION_QUERY_H_
#define EPLB_CLIENT_SESSION_QUERY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/wire/messages.h"
#include "proto/wire/tls_files.h"

namespace eplb {

struct StoredPlacement {
  wire::PlacementBody body;
  int64_t next_version = 0;  // above every version ever given out under the job's name
  std::string endpoint;      // of the daemon that says so
};

// The placement that the daemons have stored for a job. Each is asked, and waited for up to
// `timeout` while it is not there yet; of two answers that with the higher next_version is newer.
// errors: NotFound when those that answer do not know the job; DeadlineExceeded, Unavailable of the
// first one when none answers; InvalidArgument naming a file of `tls`.
absl::StatusOr<StoredPlacement> FetchPlacement(const std::vector<std::string>& endpoints,
                                               const wire::TlsFiles& tls, const std::string& job,
                                               absl::Duration timeout);

// A version number that no daemon gives to anybody else: the highest that they reserve.
// errors: as FetchPlacement; Unimplemented for a daemon that reserves none.
absl::StatusOr<int64_t> ReserveVersion(const std::vector<std::string>& endpoints,
                                       const wire::TlsFiles& tls, const std::string& job,
                                       absl::Duration timeout);

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_QUERY_H_
