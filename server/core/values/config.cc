#include "server/core/values/config.h"

#include <utility>

#include "placement/bandwidth.h"
#include "proto/wire/convert.h"

#include "eplb/v1/config.pb.h"

namespace eplb::core {
namespace {

Costs CostsOf(const v1::Configuration::Cost& cost) {
  Costs costs;
  costs.token_seconds = cost.token_ns() * 1e-9;
  costs.intra_bytes_per_s = ParseBandwidth(cost.intra_gbps()).value();
  costs.inter_bytes_per_s = ParseBandwidth(cost.inter_gbps()).value();
  costs.bandwidths = cost.has_intra_gbps() || cost.has_inter_gbps() ? BandwidthSource::kGiven
                                                                    : BandwidthSource::kAssumed;
  costs.stall_seconds = cost.stall_seconds();
  costs.replica_gradient_bytes = static_cast<int64_t>(cost.gradient_bytes());
  return costs;
}

}  // namespace

Config::Config() : Config(v1::Configuration::default_instance()) {
  report_every_steps = 0;
  vote_every_steps = 0;
  costs.bandwidths = BandwidthSource::kGiven;
}

Config::Config(const v1::Configuration& keys)
    : settings(wire::Patched({}, wire::FromProto(keys.policy()).value())),
      costs(CostsOf(keys.cost())),
      report_every_steps(keys.report().every_steps()),
      vote_every_steps(keys.vote().every_steps()),
      min_coverage(keys.report().min_coverage()),
      max_pending_windows(keys.limits().max_pending_windows()),
      max_windows(keys.limits().max_windows()),
      max_window_bytes(int64_t{keys.limits().max_window_mib()} << 20),
      max_jobs(keys.limits().max_jobs()),
      max_ranks_per_job(keys.limits().max_ranks_per_job()),
      solve_deadline(absl::Seconds(keys.limits().solve_deadline_seconds())),
      prepare_deadline(absl::Seconds(keys.limits().prepare_deadline_seconds())),
      voting_deadline(absl::Seconds(keys.limits().voting_deadline_seconds())),
      gather_deadline(absl::Seconds(keys.limits().start_deadline_seconds())),
      cancel_deadline(absl::Seconds(keys.limits().cancel_deadline_seconds())),
      session_grace(absl::Seconds(keys.limits().session_grace_seconds())),
      job_expiry(absl::Seconds(keys.limits().job_expiry_seconds())) {
  for (const auto& [job, own] : keys.jobs()) job_settings[job] = wire::FromProto(own).value();
}

Settings SettingsOf(const Config& config, const std::string& job, const SettingsPatch& patch) {
  Settings settings = config.settings;
  if (const auto own = config.job_settings.find(job); own != config.job_settings.end()) {
    settings = wire::Patched(std::move(settings), own->second);
  }
  // One that another version of the daemon stored may name what this one does not have.
  return wire::CheckPatch(patch).ok() ? wire::Patched(std::move(settings), patch) : settings;
}

absl::Time UnknownPausesEnd(std::optional<absl::Duration> age, absl::Time now) {
  constexpr absl::Duration kUnknownMatters = absl::Hours(24);
  return age ? now + kUnknownMatters - *age : absl::InfinitePast();
}

}  // namespace eplb::core
