// Configuration of the core's decisions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"

#include "placement/decision/cost.h"
#include "proto/wire/settings.h"

namespace eplb::v1 {
class Configuration;
}  // namespace eplb::v1

namespace eplb::core {

using wire::Settings;
using wire::SettingsPatch;
using wire::StepRange;

struct Config {
  // The defaults of eplbd, but the job decides about windows and votes, and bandwidths are given.
  Config();
  // The values of the keys that the core uses, which proto/eplb/v1/config.proto describes.
  // REQUIRES: each is in its range.
  explicit Config(const v1::Configuration& keys);

  Settings settings;                                  // settings of a job without its own
  std::map<std::string, SettingsPatch> job_settings;  // by job, over `settings`
  // Prices; what an expert weighs is the job's, horizon_steps a setting. Unless token_seconds is
  // known min_gain counts, and for a policy that chooses what is measured.
  Costs costs;
  int32_t report_every_steps;  // in a load window; 0 = as long as the ranks make them
  int32_t vote_every_steps;    // interval that jobs should have chosen; 0 = any
  double min_coverage;
  int32_t max_pending_windows;
  int32_t max_windows;
  int64_t max_window_bytes;
  int32_t max_jobs;
  int32_t max_ranks_per_job;
  absl::Duration solve_deadline;
  absl::Duration prepare_deadline;  // Propose to the last PREPARED
  absl::Duration voting_deadline;   // last PREPARED to the last Applied
  absl::Duration gather_deadline;   // first rank of a run to the last one
  absl::Duration cancel_deadline;
  absl::Duration session_grace;
  absl::Duration job_expiry;  // a job that ended makes room for a new one before that
  absl::Duration store_retry = absl::Seconds(10);  // between attempts while the store fails
  // When the store's database was found damaged and moved aside; none when it never was.
  std::optional<absl::Time> store_moved_aside;
  // Until then, on the core's clock, a job that the store does not know starts paused for it.
  absl::Time pauses_unknown_until = absl::InfiniteFuture();
  std::string server_version;
  bool elected = false;  // its term is that of an election in a store that several daemons share
};

// When jobs that the store does not know stop to start paused, on the core's clock: 24 hours after
// the store was moved aside, `age` before `now`. The past when it never was.
absl::Time UnknownPausesEnd(std::optional<absl::Duration> age, absl::Time now);

// Returns the settings of a job: the daemon's defaults, then the configuration of the job, then
// `patch` by an operator as far as it is valid.
Settings SettingsOf(const Config& config, const std::string& job, const SettingsPatch& patch);

}  // namespace eplb::core
