// A change asked of the daemon: the request's head, and the answer as text.
#ifndef EPLB_CLIENT_CLI_DAEMON_RUN_CHANGE_H_
#define EPLB_CLIENT_CLI_DAEMON_RUN_CHANGE_H_

#include "absl/status/status.h"

#include "client/cli/daemon/change.h"
#include "client/cli/daemon/query_client.h"
#include "client/cli/output.h"

#include "eplb/v1/admin.pb.h"

namespace eplb::cli {

// Fills a request's head. errors: those of ChooseJob and of asking for the job.
absl::Status FillChange(const ChangeOptions& options, v1::Change* change);

// JSON: {"job","request_id","version","state","outcome","before","after"}. A timeout's message says
// that the outcome is not known and how to learn it.
Output ChangeOutput(const ChangeOptions& options, const v1::Change& change,
                    const absl::Status& status, const v1::AdminResponse& response);

// Chunks of a rebalance commit within milliseconds, so that a version asked for can be out of date
// before the change arrives.
inline constexpr int kChangeAttempts = 5;

// `request` with its head filled in. Where the version to expect was asked for and not given, an
// answer that another one is in force by now makes it ask again, kChangeAttempts times in all.
template <class Request>
Output RunChange(const ChangeOptions& options, Request request) {
  v1::AdminResponse response;
  absl::Status status;
  const int attempts = options.expect_version >= 0 ? 1 : kChangeAttempts;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (const absl::Status filled = FillChange(options, request.mutable_change()); !filled.ok()) {
      return QueryFailure(filled);
    }
    status = Ask(options.query, request, &response);
    if (!absl::IsAborted(status)) break;
  }
  return ChangeOutput(options, request.change(), status, response);
}

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_RUN_CHANGE_H_
