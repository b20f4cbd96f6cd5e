// Configuration of the core's decisions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"

#include "placement/decision/cost.h"
#include "proto/wire/settings.h"

namespace eplb::core {

using wire::Settings;
using wire::SettingsPatch;
using wire::StepRange;

struct Config {
  Settings settings;                                  // settings of a job without its own
  std::map<std::string, SettingsPatch> job_settings;  // by job, over `settings`
  // Prices; what an expert weighs is the job's, horizon_steps a setting. Unless token_seconds is
  // known min_gain counts, and for a policy that chooses what is measured.
  Costs costs;
  int32_t report_every_steps = 0;   // in a load window; 0 = as long as the ranks make them
  int32_t vote_every_steps = 0;     // interval that jobs should have chosen; 0 = any
  double min_coverage = 0.95;       // share of ranks that must have reported a window
  int32_t max_pending_windows = 4;  // incomplete windows kept per job
  int32_t max_windows = 64;         // complete windows kept per job
  int64_t max_window_bytes = int64_t{512} << 20;        // loads in windows, all jobs together
  absl::Duration solve_deadline = absl::Seconds(60);    // longest work of the policy, once it began
  absl::Duration prepare_deadline = absl::Seconds(60);  // Propose to the last PREPARED
  absl::Duration voting_deadline =
      absl::Seconds(660);  // last PREPARED to the last Applied; above the vote's 600 s
  absl::Duration gather_deadline = absl::Seconds(60);  // first rank of a run to the last one
  absl::Duration cancel_deadline = absl::Seconds(60);
  absl::Duration session_grace =
      absl::Seconds(10);                           // a rank may be away so long before its run ends
  absl::Duration store_retry = absl::Seconds(10);  // between attempts while the store fails
  // A job without a connected rank for so long is forgotten. A job that ended stays for as long, so
  // that it can be read what became of it; it only makes room earlier for a new one.
  absl::Duration job_expiry = absl::Hours(24);
  int32_t max_jobs = 64;
  int32_t max_ranks_per_job = 16384;
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
