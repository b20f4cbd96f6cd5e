// The read-only JSON of /api/v1, as a function of path and query. Keys are those of eplbctl -o json
// where both show the same thing.
//   /api/v1/jobs                      {"jobs":[..]}
//   /api/v1/jobs/JOB                  one job
//   /api/v1/jobs/JOB/placement        ?version=V; {"job","version","digest","placement"}
//   /api/v1/jobs/JOB/load             ?layer=L;
//   {"job","first_step","last_step","load":[layers][experts]} /api/v1/jobs/JOB/plans ?limit=N;
//   {"plans":[..]}, newest first /api/v1/jobs/JOB/events           ?after=SEQUENCE&limit=N;
//   {"events":[..]}, newest first
#ifndef EPLB_SERVER_HTTP_API_H_
#define EPLB_SERVER_HTTP_API_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "placement/load.h"
#include "server/core/core.h"
#include "server/store/store.h"

namespace eplb {

// The newest complete window, summed over its reporters.
struct LoadView {
  int64_t first_step = 0;
  int64_t last_step = 0;
  LoadMatrix counts;  // [layers, experts]
};

// One decision of the policy; the names are those of Plan in proto/eplb/v1/query.proto.
struct PlanView {
  int64_t plan = 0;
  absl::Time time;
  std::string policy;
  std::string result;
  int64_t base_version = 0;
  int64_t first_version = 0;
  int64_t last_version = 0;
  int64_t decided_first_step = 0;
  int64_t decided_last_step = 0;
  double balancedness_before = 0;
  double balancedness_predicted = 0;
  double peak_fall = 0;
  double net_gain_seconds = 0;
  double migration_seconds = 0;
  int64_t transfers = 0;
  int64_t received_bytes = 0;
  int32_t num_chunks = 0;
  int32_t chunks_committed = 0;
  double solve_seconds = 0;
  double prepare_seconds = 0;
  double pause_seconds = 0;
  int64_t switched_step = 0;
  std::string reason;
  std::string asked_by;
};

// Where the answers come from. Called on the server's threads; the caller keeps them short. What is
// not set is answered with 404. errors: NotFound for an unknown job, version or window.
struct ApiSources {
  std::function<std::vector<core::JobView>()> jobs = {};
  std::function<absl::StatusOr<core::JobView>(const std::string& job)> job = {};
  // version: none = the one in force.
  std::function<absl::StatusOr<wire::PlacementBody>(const std::string& job,
                                                    std::optional<int64_t> version)>
      placement = {};
  std::function<absl::StatusOr<LoadView>(const std::string& job)> load = {};
  std::function<absl::StatusOr<std::vector<PlanView>>(const std::string& job, int32_t limit)>
      plans = {};
  // Newest first, with a sequence above `after`.
  std::function<absl::StatusOr<std::vector<StoredEvent>>(const std::string& job, int64_t after,
                                                         int32_t limit)>
      events = {};
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
};

using QueryParameters = std::multimap<std::string, std::string>;

// path: decoded, beginning with a slash. Errors are {"error": "one sentence"}: 400 names an unknown
// or wrong parameter, 404, 503. cost: that of the source, and O(body).
HttpResponse AnswerApi(const ApiSources& sources, std::string_view path,
                       const QueryParameters& query);

// {"error": text} with this status.
HttpResponse ErrorResponse(int status, std::string_view text);

}  // namespace eplb

#endif  // EPLB_SERVER_HTTP_API_H_
