// Calls of the client outside of its stream.
#ifndef EPLB_CLIENT_SESSION_UNARY_CALLS_H_
#define EPLB_CLIENT_SESSION_UNARY_CALLS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/tls_files.h"
#include "proto/wire/messages.h"

namespace eplb {

// What a starting rank asks the daemon.

struct StoredPlacement {
  wire::PlacementBody body;
  int64_t next_version = 0;  // above every version ever given out under the job's name
  std::string endpoint;      // of the daemon that says so
};

// The placement that the daemons have stored for a job. Each is asked, and waited for up to
// `timeout` while it is not there yet; while those that answer stand by, all are asked again for up
// to twice that time. Of two answers that with the higher next_version is newer.
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

// The rendezvous of a starting job through the daemon.

using DaemonAllGatherFunction =
    std::function<absl::StatusOr<std::vector<std::string>>(std::string_view bytes)>;

struct DaemonAllGatherOptions {
  std::vector<std::string> endpoints;  // of daemons that stand in for each other, at least one
  wire::TlsFiles tls;
  std::string job;
  std::string launch_id;
  int32_t rank = 0;
  int32_t world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // of each all-gather
};

// What MakeDaemonAllGather of client/client.h promises. threads: one caller of the result.
DaemonAllGatherFunction MakeAllGatherThroughDaemon(DaemonAllGatherOptions options);

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_UNARY_CALLS_H_
