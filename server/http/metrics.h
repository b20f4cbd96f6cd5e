// /metrics: one snapshot of the daemon in the text format of Prometheus. Base units; no label holds
// a rank. The label `layer` stands only for jobs of at most kMaxLayerLabels layers. The label
// `expert` is there only with metrics.per_expert, in at most kMaxExpertSeries series.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "server/core/values/buckets.h"
#include "server/core/values/counters.h"
#include "server/core/values/views.h"
#include "server/http/failures.h"
#include "server/process/process_figures.h"

#include "eplb/v1/query.pb.h"

namespace eplb {

inline constexpr int kMaxLayerLabels = 128;
// Limit over all jobs together. One job of 61 layers * 256 experts has 15,616 series.
inline constexpr size_t kMaxExpertSeries = 20000;

// One cell of a counter with a label: {"denied", 3}.
using LabelledCount = std::pair<std::string, int64_t>;

// Calls of one method that ended with one code.
struct CallFigures {
  std::string method;
  std::string code;
  core::Buckets seconds;
};

// The newest window of a job.
struct ExpertTokens {
  std::string job;
  core::WindowView window;
};

struct MetricsSnapshot {
  std::string version;
  std::string grpc_version;
  bool ready = false;
  bool draining = false;
  bool standby = false;  // another daemon leads, or is about to
  int64_t term = 0;
  int64_t sessions = 0;
  std::vector<LabelledCount> reports_dropped;  // by place
  std::vector<LabelledCount> refusals_by_kind;
  std::vector<LabelledCount> session_disconnects_by_reason;
  std::vector<CallFigures> calls;
  std::vector<v1::JobStatus> jobs;
  std::vector<v1::Refusal> refused_jobs;    // refusals of jobs that are not among `jobs`
  bool per_expert = false;                  // metrics.per_expert
  std::vector<ExpertTokens> expert_tokens;  // with it: of the jobs that have a window, by name
  core::Counters counters;                  // all jobs together, since the daemon started
  int64_t queued_events = 0;
  int64_t window_bytes = 0;
  double longest_hold_seconds = 0;  // longest hold of the core by one event
  core::Buckets solve_seconds;
  core::Buckets store_write_seconds;
  int64_t store_errors = 0;
  HttpFailures http;
  std::optional<absl::Time> tls_cert_expiry;
  ProcessFigures process;
};

// cost: O(jobs * layers + kMaxExpertSeries); every number finite.
std::string MetricsText(const MetricsSnapshot& snapshot);

}  // namespace eplb
