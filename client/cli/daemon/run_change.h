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

// JSON: {"job","request_id","version","state","outcome"}. A timeout's message says that the outcome
// is not known and how to learn it.
Output ChangeOutput(const ChangeOptions& options, const v1::Change& change,
                    const absl::Status& status, const v1::AdminResponse& response);

// `request` with its head filled in, asked once.
template <class Request>
Output RunChange(const ChangeOptions& options, Request request) {
  if (const absl::Status status = FillChange(options, request.mutable_change()); !status.ok()) {
    return QueryFailure(status);
  }
  v1::AdminResponse response;
  const absl::Status status = Ask(options.query, request, &response);
  return ChangeOutput(options, request.change(), status, response);
}

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_RUN_CHANGE_H_
