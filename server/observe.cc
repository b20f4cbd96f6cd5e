#include "server/observe.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"
#include "proto/wire/tls_files.h"
#include "server/http/job_json.h"
#include "server/rpc/rpc_server.h"
#include "server/runner/runner.h"

namespace eplb {
namespace {

absl::StatusOr<wire::PlacementBody> PlacementOf(const Runner& runner, const std::string& job,
                                                std::optional<int64_t> version) {
  EPLB_ASSIGN_OR_RETURN(wire::PlacementBody body, runner.PlacementInForce(job));
  if (version.value_or(body.version) == body.version) return body;
  return absl::NotFoundError(absl::StrCat("job ", job, ": version ", *version,
                                          " is not kept, version ", body.version, " is in force"));
}

absl::StatusOr<std::vector<StoredEvent>> EventsOf(const Runner& runner, const std::string& job,
                                                  int64_t after, int32_t limit) {
  EPLB_ASSIGN_OR_RETURN(std::vector<StoredEvent> events, runner.Events(job, limit));
  std::erase_if(events, [after](const StoredEvent& event) { return event.sequence <= after; });
  return events;
}

}  // namespace

MetricsSnapshot TakeSnapshot(const Observed& observed) {
  const Runner& runner = *observed.runner;
  MetricsSnapshot snapshot;
  snapshot.version = observed.version;
  snapshot.grpc_version = GrpcVersion();
  snapshot.ready = runner.Readiness().ok();
  snapshot.term = runner.term();
  snapshot.sessions = runner.sessions().count();
  snapshot.reports_dropped_at_queue = runner.dropped_reports();
  for (int kind = 0; kind < kNumRefusals; ++kind) {
    const auto refusal = static_cast<Refusal>(kind);
    snapshot.refusals_by_kind.emplace_back(NameOf(refusal), observed.rpc->refusals(refusal));
  }
  const StreamEnds ends = observed.rpc->stream_ends();
  snapshot.session_disconnects_by_reason = {
      {"goodbye", ends.goodbye}, {"closed", ends.closed}, {"lost", ends.lost}};
  snapshot.jobs = runner.Jobs();
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
  return {
      .alive = [runner] { return runner->Alive(); },
      .ready = [runner] { return runner->Readiness(); },
      .metrics = [observed] { return MetricsText(TakeSnapshot(observed)); },
      .version = [version = observed.version] { return VersionToJson(version, GrpcVersion()); },
      .api =
          {
              .jobs = [runner] { return runner->Jobs(); },
              .job = [runner](const std::string& job) { return runner->Job(job); },
              .placement =
                  [runner](const std::string& job, std::optional<int64_t> version) {
                    return PlacementOf(*runner, job, version);
                  },
              .events = [runner](const std::string& job, int64_t after,
                                 int32_t limit) { return EventsOf(*runner, job, after, limit); },
          }};
}

}  // namespace eplb
