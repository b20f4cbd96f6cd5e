#include "server/core/decisions/prices.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/text.h"
#include "server/core/state/step_rate.h"
#include "server/core/values/account.h"

namespace eplb::core {
namespace {

constexpr double kLeastSecondsPerByte = 1e-15;  // a measured rate is not 0

// The time of a token on the fullest GPU, from the newest window and the job's steps; 0: nobody
// asked for it, or it is not measured yet.
double MeasuredTokenSeconds(const Job& job) {
  const std::optional<Measured>& measured = job.windows.measured;
  if (!Chooses(job) || !job.current || !measured) return 0;
  const double steps = static_cast<double>(measured->last_step - measured->first_step) + 1;
  const double tokens = measured->peak_load / steps;
  const double step_seconds = SecondsPerUnswitchedStep(job.current->rate);
  if (!(tokens > 0) || !(step_seconds > 0)) return 0;
  return kExpertsShareOfStep * step_seconds / tokens;
}

// Returns the newest switches, without the run's first if there are others.
std::vector<MeasuredPause> UsualPauses(const Job& job) {
  const std::deque<MeasuredPause>& pauses = job.decisions.pauses;
  const bool skips = pauses.size() > 1 && pauses.front().is_first;
  return {pauses.begin() + (skips ? 1 : 0), pauses.end()};
}

// Time of a boundary: a fixed part, and one for each byte of its fullest rank.
struct PauseLine {
  double fixed_seconds = 0;
  double seconds_per_byte = 0;  // 0 before the first switch
};

// Returns the line through the newest switches: one that a busy host delayed does not price all
// later ones. The bytes take all of the time if the largest switch has less than twice the bytes of
// the smallest, and always at least half of it.
PauseLine FitPauses(const Job& job) {
  const std::vector<MeasuredPause> pauses = UsualPauses(job);
  double seconds = 0;
  double bytes = 0;
  for (const MeasuredPause& pause : pauses) {
    seconds += pause.seconds;
    bytes += static_cast<double>(pause.bytes);
  }
  if (bytes <= 0) return {};
  const auto count = static_cast<double>(pauses.size());
  const auto [small, large] = std::ranges::minmax_element(pauses, {}, &MeasuredPause::bytes);
  double per_byte = seconds / bytes;
  if (large->bytes >= 2 * small->bytes) {
    double covariance = 0;
    double variance = 0;
    for (const MeasuredPause& pause : pauses) {
      const double more = static_cast<double>(pause.bytes) - bytes / count;
      covariance += more * (pause.seconds - seconds / count);
      variance += more * more;
    }
    per_byte = std::clamp(covariance / variance, per_byte / 2, per_byte);
  }
  return {.fixed_seconds = std::max(0.0, (seconds - per_byte * bytes) / count),
          .seconds_per_byte = std::max(per_byte, kLeastSecondsPerByte)};
}

// Sets what a boundary takes as the newest chunks show. In small chunks votes weigh more than
// bytes, so the smallest shows the fixed time if the largest has twice its bytes. At least half of
// the largest chunk's time counts as that of its bytes, so that the next one is at most twice as
// large.
void SetMeasured(const Job& job, BoundaryLimits& limits) {
  const auto by_size = [](const MeasuredPause& a, const MeasuredPause& b) {
    return std::tie(a.bytes, a.seconds) < std::tie(b.bytes, b.seconds);
  };
  const std::vector<MeasuredPause> pauses = UsualPauses(job);
  const auto [small, large] = std::ranges::minmax_element(pauses, by_size);
  if (small == pauses.end() || large->bytes == 0) return;
  const auto bytes = static_cast<double>(large->bytes);
  limits.seconds_per_byte = large->seconds / bytes;
  if (large->bytes >= 2 * small->bytes && large->seconds > small->seconds) {
    const double slope =
        (large->seconds - small->seconds) / (bytes - static_cast<double>(small->bytes));
    limits.seconds_per_byte =
        std::clamp(slope, limits.seconds_per_byte / 2, limits.seconds_per_byte);
    limits.fixed_seconds = large->seconds - limits.seconds_per_byte * bytes;
  }
  limits.seconds_per_byte = std::max(limits.seconds_per_byte, kLeastSecondsPerByte);
}

}  // namespace

bool Chooses(const Job& job) { return job.settings.policy.chooses; }

int32_t EverySteps(const Job& job) {
  if (job.settings.every_steps > 0) return job.settings.every_steps;
  const bool asks = job.current && !job.current->asking.engine.empty();
  const bool at_windows = (Chooses(job) || asks) && job.current && job.current->report_every > 0;
  return at_windows ? job.current->report_every : kUsualEverySteps;
}

Costs CostsOf(const State& state, const Job& job) {
  const Run& run = *job.current;
  Costs costs = state.config.costs;
  costs.horizon_steps = job.settings.horizon_steps;
  costs.token_seconds /= static_cast<double>(run.grid.num_token_groups());
  costs.expert = run.migration;
  if (costs.replica_gradient_bytes > 0) costs.replica_weight_bytes = costs.expert.weight_bytes;
  return costs;
}

BoundaryLimits LimitsOf(const Job& job) {
  // An answer is a chunk. How long an engine pauses for it is the engine's own.
  if (!job.current->asking.engine.empty()) {
    return {.layers_per_chunk = job.settings.layers_per_chunk};
  }
  BoundaryLimits limits{.layers_per_chunk = job.settings.layers_per_chunk,
                        .rows_per_chunk = RowsPerChunk(job),
                        .max_pause_seconds = absl::ToDoubleSeconds(job.settings.max_pause),
                        .measured = {job.decisions.pauses.begin(), job.decisions.pauses.end()}};
  SetMeasured(job, limits);
  return limits;
}

SwitchTime SwitchTimeOf(const Job& job) {
  if (!job.current->asking.engine.empty()) {  // before the next window
    return {.layers_per_chunk = job.settings.layers_per_chunk};
  }
  const BoundaryLimits limits = LimitsOf(job);
  const double step_seconds = SecondsPerStep(job.current->rate);
  const double decide_steps =
      step_seconds > 0 ? (job.decisions.solve_seconds + kMessageSeconds) / step_seconds : 1;
  const double message_steps = step_seconds > 0 ? std::ceil(kMessageSeconds / step_seconds) : 1;
  const auto chunk_steps = static_cast<int32_t>(std::clamp(message_steps, 1.0, 1e6));
  return {.decide_steps = std::max(1.0, decide_steps),
          .vote_every = std::max(1, job.current->vote_every),
          .active_steps = kUsualActiveSteps,
          .chunk_steps = chunk_steps,
          .layers_per_chunk = limits.layers_per_chunk,
          .rows_per_chunk = limits.rows_per_chunk,
          .max_pause_seconds = limits.max_pause_seconds,
          .seconds_per_byte = limits.seconds_per_byte};
}

std::string WhyNotNextChunk(const Job& job) {
  if (job.chunks.rest.empty()) return "";
  const int64_t age = job.step - job.chunks.decided_last_step;
  const int64_t oldest =
      std::max(kMostIntervals * EverySteps(job), kMostVotes * job.current->vote_every);
  // An operator who returns to a version wants all of it.
  if (age > oldest && !job.chunks.despite_pause) {
    return absl::StrCat("the load that the decision covers is ", age,
                        " steps old, the next decision is due");
  }
  const BoundaryLimits limits = LimitsOf(job);
  const double seconds = LeastPause(limits.measured, job.chunks.rest.front().incoming_bytes);
  const double most = limits.max_pause_seconds;
  if (seconds <= most) return "";
  return absl::StrCat("the next chunk would take ", SecondsText(seconds),
                      ", as chunks of fewer bytes did, and migration.max_pause is ",
                      SecondsText(most));
}

Costs PricesOf(const State& state, const Job& job) {
  Costs costs = CostsOf(state, job);
  if (costs.token_seconds <= 0) costs.token_seconds = MeasuredTokenSeconds(job);
  const PauseLine line = FitPauses(job);
  if (costs.token_seconds <= 0 || costs.bandwidths == BandwidthSource::kGiven ||
      line.seconds_per_byte <= 0) {
    return costs;
  }
  costs.bandwidths = BandwidthSource::kMeasured;
  if (costs.stall_seconds <= 0) costs.stall_seconds = line.fixed_seconds;
  const double bytes_per_s = 1 / line.seconds_per_byte;
  costs.intra_bytes_per_s = bytes_per_s;
  costs.inter_bytes_per_s = bytes_per_s;
  return costs;
}

}  // namespace eplb::core
