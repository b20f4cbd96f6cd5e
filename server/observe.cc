#include "server/observe.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "placement/evaluate.h"
#include "proto/wire/tls_files.h"
#include "server/http/job_json.h"
#include "server/rpc/rpc_server.h"
#include "server/runner/runner.h"

namespace eplb {
namespace {

absl::StatusOr<wire::PlacementBody> PlacementOf(const Runner& runner, const std::string& job,
                                                std::optional<int64_t> version) {
  return version ? runner.PlacementOf(job, *version) : runner.PlacementInForce(job);
}

// The step of the newest plan that was switched to, wholly or in part; decisions that kept the
// placement are newer. Few plans are copied where the switch is not long ago.
std::optional<int64_t> LastCommitStep(const Runner& runner, const std::string& job) {
  constexpr int32_t kGrowth = 10;
  for (int32_t limit = kGrowth;; limit = std::min(limit * kGrowth, core::Core::kMaxPlans)) {
    const absl::StatusOr<std::vector<core::Plan>> plans = runner.Plans(job, limit);
    if (!plans.ok()) return std::nullopt;
    for (const core::Plan& plan : *plans) {
      if (plan.switched_step > 0) return plan.switched_step;
    }
    if (std::ssize(*plans) < limit || limit == core::Core::kMaxPlans) return std::nullopt;
  }
}

}  // namespace

JobFigures FiguresOf(const Runner& runner, const core::JobView& job) {
  JobFigures figures{.job = job.job, .last_commit_step = LastCommitStep(runner, job.job)};
  const absl::StatusOr<std::vector<core::Plan>> plans = runner.Plans(job.job, 1);
  if (plans.ok() && !plans->empty()) {
    figures.predicted_balancedness = plans->front().balancedness_predicted;
  }
  const absl::StatusOr<core::WindowView> window = runner.NewestWindow(job.job);
  const absl::StatusOr<wire::PlacementBody> body = runner.PlacementInForce(job.job);
  if (!window.ok() || !body.ok()) return figures;
  const absl::StatusOr<Evaluation> evaluation = Evaluate(*window->load, body->placement);
  if (evaluation.ok()) figures.layer_balancedness = evaluation->balancedness;
  return figures;
}

MetricsSnapshot TakeSnapshot(const Observed& observed) {
  const Runner& runner = *observed.runner;
  MetricsSnapshot snapshot;
  snapshot.version = observed.version;
  snapshot.grpc_version = GrpcVersion();
  snapshot.ready = runner.Readiness().ok();
  snapshot.draining = observed.rpc->draining();
  snapshot.term = runner.term();
  snapshot.sessions = runner.sessions().count();
  snapshot.reports_dropped_at_queue = runner.dropped_reports();
  for (int kind = 0; kind < kNumRefusals; ++kind) {
    const auto refusal = static_cast<Refusal>(kind);
    snapshot.refusals_by_kind.emplace_back(NameOf(refusal), observed.rpc->refusals(refusal));
  }
  snapshot.refusals_by_kind.emplace_back("rank", runner.Counters().core.refused);
  const StreamEnds ends = observed.rpc->stream_ends();
  snapshot.session_disconnects_by_reason = {
      {"goodbye", ends.goodbye}, {"closed", ends.closed}, {"lost", ends.lost}};
  for (RpcTimes::Series& series : observed.rpc->rpc_times()) {
    snapshot.calls.push_back({std::move(series.method), std::move(series.code), series.seconds});
  }
  snapshot.jobs = runner.Jobs();
  for (const core::JobView& job : snapshot.jobs) {
    snapshot.job_figures.push_back(FiguresOf(runner, job));
  }
  const RunnerCounters counters = runner.Counters();
  snapshot.counters = counters.core;
  snapshot.queued_events = counters.queued_events;
  snapshot.solve_seconds = runner.solve_seconds();
  snapshot.store_write_seconds = runner.store_write_seconds();
  snapshot.store_errors = runner.store_errors();
  if (!observed.tls_cert.empty()) {
    const absl::StatusOr<absl::Time> expiry = wire::CertificateExpiry(observed.tls_cert);
    if (expiry.ok()) snapshot.tls_cert_expiry = *expiry;
  }
  snapshot.process = ReadProcessFigures();
  return snapshot;
}

HttpServer::Sources SourcesOf(const Observed& observed) {
  const Runner* runner = observed.runner;
  return {.alive = [runner] { return runner->Alive(); },
          .ready = [runner] { return runner->Readiness(); },
          .metrics =
              [observed](const HttpFailures& http) {
                MetricsSnapshot snapshot = TakeSnapshot(observed);
                snapshot.http = http;
                return MetricsText(snapshot);
              },
          .version = [version = observed.version] { return VersionToJson(version, GrpcVersion()); },
          .api =
              {
                  .jobs = [runner] { return runner->Jobs(); },
                  .job = [runner](const std::string& job) { return runner->Job(job); },
                  .placement =
                      [runner](const std::string& job, std::optional<int64_t> version) {
                        return PlacementOf(*runner, job, version);
                      },
                  .load = [runner](const std::string& job) { return runner->NewestWindow(job); },
                  .plans = [runner](const std::string& job,
                                    int32_t limit) { return runner->Plans(job, limit); },
                  .events = [runner](const std::string& job, int64_t after,
                                     int32_t limit) { return runner->Events(job, limit, after); },
              }};
}

}  // namespace eplb
