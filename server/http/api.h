// The read-only JSON of /api/v1, as a function of path and query. Keys are those of eplbctl -o json
// where both show the same thing.
//   /api/v1/jobs                      {"jobs":[..],"jobs_hidden","refusals":[..],"warnings":[..]};
//                                     ?ranks=0: without each job's ranks
//   /api/v1/jobs/JOB                  one job
//   /api/v1/jobs/JOB/placement        ?version=V; {"job","version","digest","placement"};
//                                     &layer=L: {.., "layer","experts":[slots],"gpus":[slots],
//                                     "primaries":[experts]}
//   /api/v1/jobs/JOB/load             ?layer=L&window=W; {"job","first_step","last_step",
//                                     "first_layer","load":[layers][experts],
//                                     "gpu_loads":[layers][gpus],"versions"}
//   /api/v1/jobs/JOB/windows          ?after=WINDOW&limit=N; {"job","windows":[..]}, oldest first
//   /api/v1/jobs/JOB/gpu_loads        ?window=W; tokens on GPUs of one window, measured and static
//   /api/v1/jobs/JOB/traffic          ?plan=P; transfers between GPUs and nodes of one decision
//   /api/v1/jobs/JOB/plans            ?limit=N; {"job","plans":[..]}, newest first;
//                                     ?plan=P: that one alone, with its times
//   /api/v1/jobs/JOB/events           ?after=SEQUENCE&limit=N; {"job","events":[..]}, newest first
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "server/core/values/events.h"
#include "server/core/values/views.h"
#include "server/history/traffic.h"
#include "server/history/window_history.h"
#include "server/store/store.h"

#include "eplb/v1/query.pb.h"

namespace eplb {

// Sources of the answers. They are called on the server's threads, must be short, and are all set.
// errors: NotFound for an unknown job, version or window.
struct ApiSources {
  std::function<std::vector<v1::JobStatus>()> jobs = {};
  std::function<std::vector<v1::Refusal>()> refusals = {};  // refusals of unknown jobs
  std::function<std::vector<std::string>()> warnings = {};  // warnings about the daemon itself
  std::function<absl::StatusOr<v1::JobStatus>(const std::string& job)> job = {};
  // version: absent for the current one.
  std::function<absl::StatusOr<wire::PlacementBody>(const std::string& job,
                                                    std::optional<int64_t> version)>
      placement = {};
  std::function<absl::StatusOr<core::WindowView>(const std::string& job)> load = {};
  // See Runner::Windows, LoadsOf and TrafficOf.
  std::function<absl::StatusOr<std::vector<v1::Window>>(const std::string& job, int64_t after,
                                                        int32_t limit)>
      windows = {};
  std::function<absl::StatusOr<WindowLoads>(const std::string& job, std::optional<int64_t> window)>
      window_loads = {};
  std::function<absl::StatusOr<Traffic>(const std::string& job, std::optional<int64_t> plan)>
      traffic = {};
  std::function<absl::StatusOr<std::vector<v1::Plan>>(const std::string& job, int32_t limit)>
      plans = {};
  std::function<absl::StatusOr<v1::Plan>(const std::string& job, int64_t number)> plan = {};
  // Newest first, with a sequence above `after`.
  std::function<absl::StatusOr<std::vector<v1::JobEvent>>(const std::string& job, int64_t after,
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

// Returns a peer's text as an error shows it: on one line, its first 64 bytes.
std::string Shown(std::string_view text);

}  // namespace eplb
