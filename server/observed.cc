// Copies the figures of the runner and of gRPC into what HTTP shows.
#include "server/observed.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/tls_files.h"
#include "server/http/job_json.h"
#include "server/rpc/grpc_version.h"
#include "server/rpc/rpc_server.h"
#include "server/runner/runner.h"

namespace eplb {
namespace {

absl::StatusOr<wire::PlacementBody> PlacementOf(const Runner& runner, const std::string& job,
                                                std::optional<int64_t> version) {
  return version ? runner.PlacementOf(job, *version) : runner.PlacementInForce(job);
}

}  // namespace

MetricsSnapshot TakeSnapshot(const Observed& observed) {
  const Runner& runner = *observed.runner;
  MetricsSnapshot snapshot;
  snapshot.version = observed.version;
  snapshot.grpc_version = GrpcVersion();
  snapshot.ready = runner.Readiness().ok();
  snapshot.draining = observed.rpc->draining();
  snapshot.term = runner.term();
  snapshot.sessions = runner.sessions().count();
  snapshot.reports_dropped = {{"queue", runner.dropped_reports()},
                              {"stream", runner.limited_reports()},
                              {"ahead", runner.Counters().core.reports_ahead}};
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
  snapshot.refused_jobs = runner.Refusals();
  snapshot.per_expert = observed.per_expert;
  if (observed.per_expert) {
    for (const v1::JobStatus& job : snapshot.jobs) {
      absl::StatusOr<core::WindowView> window = runner.NewestWindow(job.job());
      if (window.ok()) snapshot.expert_tokens.push_back({job.job(), *std::move(window)});
    }
  }
  const RunnerCounters counters = runner.Counters();
  snapshot.counters = counters.core;
  snapshot.queued_events = counters.queued_events;
  snapshot.window_bytes = counters.window_bytes;
  snapshot.longest_hold_seconds = absl::ToDoubleSeconds(counters.longest_hold);
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
                  .refusals = [runner] { return runner->Refusals(); },
                  .warnings = [runner] { return runner->Warnings(); },
                  .job = [runner](const std::string& job) { return runner->Job(job); },
                  .placement =
                      [runner](const std::string& job, std::optional<int64_t> version) {
                        return PlacementOf(*runner, job, version);
                      },
                  .load = [runner](const std::string& job) { return runner->NewestWindow(job); },
                  .windows = [runner](const std::string& job, int64_t after,
                                      int32_t limit) { return runner->Windows(job, after, limit); },
                  .window_loads =
                      [runner](const std::string& job, std::optional<int64_t> window) {
                        return runner->LoadsOf(job, window);
                      },
                  .traffic =
                      [runner](const std::string& job, std::optional<int64_t> plan) {
                        return runner->TrafficOf(job, plan);
                      },
                  .plans = [runner](const std::string& job,
                                    int32_t limit) { return runner->Plans(job, limit); },
                  .plan = [runner](const std::string& job,
                                   int64_t number) { return runner->OnePlan(job, number); },
                  .events = [runner](const std::string& job, int64_t after,
                                     int32_t limit) { return runner->Events(job, limit, after); },
              }};
}

}  // namespace eplb
