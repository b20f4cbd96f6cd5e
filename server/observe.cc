#include "server/observe.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/tls_files.h"
#include "server/http/job_json.h"
#include "server/rpc/rpc_server.h"
#include "server/runner/monotonic_clock.h"
#include "server/runner/runner.h"

namespace eplb {
namespace {

absl::StatusOr<wire::PlacementBody> PlacementOf(const Runner& runner, const std::string& job,
                                                std::optional<int64_t> version) {
  return version ? runner.PlacementOf(job, *version) : runner.PlacementInForce(job);
}

std::vector<RefusedRanks> RefusalsOf(const Runner& runner) {
  const absl::Time now = MonotonicNow();
  std::vector<RefusedRanks> refusals;
  for (core::RefusedJob& one : runner.Refusals()) {
    const absl::Duration ago = now - one.at;
    refusals.push_back({.job = std::move(one), .ago = ago});
  }
  return refusals;
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
  const RunnerCounters counters = runner.Counters();
  snapshot.counters = counters.core;
  snapshot.queued_events = counters.queued_events;
  snapshot.window_bytes = counters.window_bytes;
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
                  .refusals = [runner] { return RefusalsOf(*runner); },
                  .warnings = [runner] { return runner->Warnings(); },
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
