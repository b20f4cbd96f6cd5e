#include "server/standby_daemon.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "base/tls_files.h"
#include "server/config/config_values.h"
#include "server/daemon.h"
#include "server/descriptor_plan.h"
#include "server/etcd/etcd_store.h"
#include "server/http/api.h"
#include "server/http/job_json.h"
#include "server/http/metrics.h"
#include "server/process/log.h"
#include "server/process/process_figures.h"
#include "server/rpc/grpc_version.h"
#include "server/rpc/rpc_server.h"

namespace eplb {
namespace {

// After a failover each rank comes once, until it learns who leads. Later it comes again.
constexpr absl::Duration kComesAgain = absl::Seconds(10);
constexpr absl::Duration kQuestion = absl::Seconds(2);  // a turn holds up signals
constexpr absl::Duration kProbe = absl::Milliseconds(500);
constexpr absl::Duration kAfterError = absl::Milliseconds(300);

std::string StandbyText(const etcd::Election& election, const std::string& trouble) {
  const std::string leader = election.leader().address;
  return absl::StrCat("this daemon stands by",
                      leader.empty() ? ", and none leads at the moment"
                                     : absl::StrCat("; the one at ", leader, " leads"),
                      trouble.empty() ? "" : "; ", trouble);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StandbyDaemon>> StandbyDaemon::Start(const DaemonConfig& config) {
  auto standby = std::unique_ptr<StandbyDaemon>(new StandbyDaemon(config));
  const v1::Configuration::Store::Etcd& keys = config.keys.store().etcd();
  EPLB_ASSIGN_OR_RETURN(const EtcdEndpoints members, ParseEtcdEndpoints(keys.endpoints()));
  EPLB_ASSIGN_OR_RETURN(standby->client_,
                        etcd::Client::Make({.endpoints = members.members,
                                            .tls = config.etcd_tls(),
                                            .timeout = absl::Seconds(keys.timeout_seconds())}));
  standby->election_ = std::make_unique<etcd::Election>(
      standby->client_.get(),
      etcd::ElectionOptions{
          .prefix = keys.prefix(),
          .lease = absl::Seconds(keys.lease_seconds()),
          .lease_changed = [client = standby->client_.get()](absl::Duration lease) {
            Log(LogLevel::kInfo, "lease_changed",
                {{"lease", absl::FormatDuration(lease)},
                 {"call_seconds", absl::ToDoubleSeconds(client->round_trip())}});
          }});
  EPLB_RETURN_IF_ERROR(standby->Serve());
  return standby;
}

absl::Status StandbyDaemon::Serve() {
  const DescriptorPlan descriptors =
      PlanDescriptors(DescriptorLimit(), config_.keys.limits().max_sessions());
  EPLB_ASSIGN_OR_RETURN(
      rpc_,
      StandbyServer::Start(
          {.listen = config_.grpc(),
           .tls = config_.tls(),
           .handshake_deadline = absl::Seconds(config_.keys.limits().handshake_deadline_seconds()),
           .descriptors_below = descriptors.tcp_below,
           .leader = [election = election_.get()] { return election->leader().address; },
           .trouble = [client = client_.get()] { return client->Trouble(); }}));
  config_.keys.mutable_listen()->set_grpc(rpc_->address().Text());
  EPLB_ASSIGN_OR_RETURN(
      http_, HttpServer::Start(config_.http(), SourcesOfStandby(), config_.allowed_hosts(),
                               descriptors.http_connections));
  config_.keys.mutable_listen()->set_http(http_->address().Text());
  return absl::OkStatus();
}

HttpServer::Sources StandbyDaemon::SourcesOfStandby() const {
  const etcd::Election* election = election_.get();
  const std::string cert = config_.keys.tls().cert();
  const auto text = [election, client = client_.get()] {
    return StandbyText(*election, client->Trouble());
  };
  const auto stands_by = [text](const auto&...) { return absl::UnavailableError(text()); };
  return {.alive = [] { return absl::OkStatus(); },
          .ready = [text] { return absl::UnavailableError(text()); },
          .metrics =
              [election, cert](const HttpFailures& http) {
                MetricsSnapshot snapshot;
                snapshot.version = DaemonVersion();
                snapshot.grpc_version = GrpcVersion();
                snapshot.standby = true;
                snapshot.term = election->leader().term;
                snapshot.http = http;
                if (!cert.empty()) {
                  const absl::StatusOr<absl::Time> expiry = wire::CertificateExpiry(cert);
                  if (expiry.ok()) snapshot.tls_cert_expiry = *expiry;
                }
                snapshot.process = ReadProcessFigures();
                return MetricsText(snapshot);
              },
          .version = [] { return VersionToJson(DaemonVersion(), GrpcVersion()); },
          .api = {.jobs = [] { return std::vector<v1::JobStatus>(); },
                  .refusals = [] { return std::vector<v1::Refusal>(); },
                  .warnings = [text] { return std::vector<std::string>{text()}; },
                  .job = stands_by,
                  .placement = stands_by,
                  .load = stands_by,
                  .windows = stands_by,
                  .window_loads = stands_by,
                  .traffic = stands_by,
                  .plans = stands_by,
                  .plan = stands_by,
                  .events = stands_by}};
}

bool StandbyDaemon::Turn(absl::Duration most) {
  const absl::StatusOr<bool> leads = election_->TryToLead(AdvertisedAddress(config_));
  Tell(leads);
  if (leads.ok() && *leads) return true;
  if (leads.ok()) {
    if (MissTheLeader(rpc_->TakeRefusedJobs())) {
      const absl::Time now = MonotonicNow();
      const bool again = now < std::exchange(missed_, now) + kComesAgain;
      if (again) election_->Knock(AdvertisedAddress(config_));
    }
    if (!election_->AwaitVacancy(most).ok()) absl::SleepFor(std::min(most, kAfterError));
  } else {
    absl::SleepFor(std::min(most, kAfterError));
  }
  return false;
}

bool StandbyDaemon::MissTheLeader(const std::set<std::string>& jobs) {
  const std::string leader = election_->leader().address;
  if (jobs.empty() || leader.empty()) return false;
  const absl::Time deadline = MonotonicNow() + std::min(client_->timeout(), kQuestion);
  if (etcd::IsAnyStored(client_.get(), config_.keys.store().etcd().prefix(), jobs, deadline)
          .value_or(false)) {
    return true;
  }
  const TlsOptions tls = config_.tls();
  return !Reaches(leader, {.ca = tls.ca, .cert = tls.cert, .key = tls.key}, kProbe);
}

// One line for each change.
void StandbyDaemon::Tell(const absl::StatusOr<bool>& leads) {
  const etcd::Leader leader = election_->leader();
  const std::string now = !leads.ok() ? "etcd" : absl::StrCat(*leads, leader.address, leader.term);
  if (std::exchange(told_, now) == now) return;
  if (!leads.ok()) {
    Log(LogLevel::kWarn, "etcd_unreachable", {{"reason", std::string(leads.status().message())}});
  } else if (*leads) {
    Log(LogLevel::kInfo, "leading", {{"term", leader.term}, {"advertise", leader.address}});
  } else {
    Log(LogLevel::kInfo, "standing_by", {{"leader", leader.address}, {"term", leader.term}});
  }
}

absl::StatusOr<std::unique_ptr<Store>> StandbyDaemon::Lead(
    std::function<void(const std::string& why)> lost, std::function<bool()> serves_nobody) {
  election_->Hold(lost, std::move(serves_nobody));
  etcd::Election* election = election_.get();
  EPLB_ASSIGN_OR_RETURN(
      std::unique_ptr<Store> store,
      etcd::OpenEtcdStore(
          {.rows = {.client = client_.get(),
                    .prefix = config_.keys.store().etcd().prefix(),
                    .fence = election->fence(),
                    .may_write = [election] { return election->MayWrite(); },
                    .write_until = [election] { return election->write_until(); },
                    .lost = std::move(lost)},
           // A daemon leads with the term behind the stored one: this is the key's revision, or
           // more where an older etcd was restored.
           .least_term = election->fence().create_revision - 1,
           .limits = etcd::LimitsInEtcd({.max_history = config_.keys.limits().max_history()})}));
  if (!store->opening_note().empty()) {
    Log(LogLevel::kError, "store_rows_damaged", {{"reason", store->opening_note()}});
  }
  http_.reset();
  rpc_.reset();
  return store;
}

}  // namespace eplb
