#include "server/core/ranks/pace.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"

namespace eplb::core {
namespace {

constexpr int64_t kLeadWindows = 2;      // between the newest report and the change
constexpr int64_t kPatienceWindows = 8;  // after the change, for a window of the new length
constexpr int64_t kMaxPeriod = int64_t{1} << 40;  // steps; lengths are at most 2^20

// A multiple of every length that some rank may have, as far as that is below kMaxPeriod.
int64_t CommonPeriod(const Incarnation& incarnation, int32_t wanted) {
  int64_t period = std::lcm<int64_t>(incarnation.report_every, wanted);
  for (const Rank& rank : incarnation.ranks) {
    if (rank.report_every == 0 || period % rank.report_every == 0) continue;
    const int64_t common = std::lcm<int64_t>(period, rank.report_every);
    if (common <= kMaxPeriod) period = common;
  }
  return period;
}

bool AllHave(const Incarnation& incarnation, int32_t report_every) {
  return incarnation.report_every == report_every &&
         std::all_of(incarnation.ranks.begin(), incarnation.ranks.end(),
                     [&](const Rank& rank) { return rank.report_every == report_every; });
}

void Adjust(PaceLoad& load, bool dropped, absl::Time now) {
  if (dropped) {
    load.calm_since = now;
    if (now - load.raised_at < kRaiseInterval) return;
    load.raised_at = now;
    load.factor = std::min(2 * load.factor, kMaxPaceFactor);
  } else if (load.factor > 1 && now - load.calm_since >= kCalmInterval) {
    load.calm_since = now;
    load.factor /= 2;
  }
}

int32_t NumReporters(const Incarnation& incarnation) {
  if (incarnation.reduce == wire::Reduce::kRoot) return 1;
  return incarnation.world_size() / incarnation.grid.expert_tensor_parallel();
}

// Why windows are longer than configured; empty when they are not.
std::string LongerText(const State& state, const Job& job) {
  const int32_t factor = std::max(state.pace_load.factor, job.pace_load.factor);
  if (factor == 1) return "";
  const char* const why = state.pace_load.factor >= job.pace_load.factor
                              ? "the daemon drops reports"
                              : "the job's ranks report above limits.messages_per_second";
  return absl::StrCat("; ", why, ", so windows are ", factor, " times as long as configured");
}

void Announce(Turn& turn, Job& job, int32_t wanted) {
  Incarnation& incarnation = *job.current;
  const int64_t period = CommonPeriod(incarnation, wanted);
  const int64_t lead = kLeadWindows * std::max(incarnation.report_every, wanted);
  const int64_t from_step = (job.step + 1 + lead + period - 1) / period * period;
  incarnation.pace = {.report_every = wanted, .from_step = from_step};
  SendToAll(turn, incarnation, wire::Pace{.report_every = wanted, .from_step = from_step});
  if (incarnation.told_report_every == wanted) return;  // said before, without effect
  // A run begins before it can hear of another length: its ranks train without the daemon.
  const char* const began =
      incarnation.told_report_every == 0 ? ", the report_every that they began with" : "";
  incarnation.told_report_every = wanted;
  RecordNotice(turn, job, "pace",
               absl::StrCat("the ranks are asked for windows of ", wanted, " steps from step ",
                            from_step, " on, until now ", incarnation.report_every, began,
                            LongerText(turn.state, job)));
}

bool HasChanged(const Windows& windows, const PaceChange& change) {
  if (windows.complete.empty()) return false;
  const Window& newest = windows.complete.back();
  return newest.first_step >= change.from_step &&
         newest.last_step - newest.first_step + 1 == change.report_every;
}

// True while a change is on its way.
bool IsChanging(Job& job) {
  Incarnation& incarnation = *job.current;
  const PaceChange change = incarnation.pace;
  if (change.report_every == 0) return false;
  if (HasChanged(job.windows, change)) {
    incarnation.report_every = change.report_every;
    for (Rank& rank : incarnation.ranks) rank.report_every = change.report_every;
    incarnation.pace = {};
    return false;
  }
  const int64_t longest = std::max(incarnation.report_every, change.report_every);
  if (job.step < change.from_step + kPatienceWindows * longest) return true;
  incarnation.pace = {};
  return false;
}

}  // namespace

void NoteDroppedReports(State& state, const Tick& tick, absl::Time now) {
  PaceLoad& common = state.pace_load;
  Adjust(common, tick.dropped_reports > common.dropped_reports, now);
  common.dropped_reports = std::max(common.dropped_reports, tick.dropped_reports);
  std::map<std::string, int32_t> reporters;  // above their limit, by job
  for (const LimitedReports& limited : tick.limited) {
    const auto seat = state.seats.find(limited.session);
    if (seat == state.seats.end()) continue;
    Job& job = state.jobs.at(seat->second.job);
    if (!job.current || job.current->name != seat->second.incarnation) continue;
    job.current->ranks[seat->second.rank].reports_dropped += limited.count;
    job.pace_load.dropped_reports += limited.count;
    ++reporters[job.name];
  }
  for (auto& [name, job] : state.jobs) {
    const auto found = reporters.find(name);
    const bool most = found != reporters.end() && 2 * found->second > NumReporters(*job.current);
    Adjust(job.pace_load, most, now);
  }
}

void CheckPace(Turn& turn, Job& job) {
  const int32_t configured = turn.state.config.report_every_steps;
  if (configured == 0 || !job.current || job.current->ending != Ending::kLive ||
      job.current->num_hello < job.current->world_size()) {
    return;
  }
  if (IsChanging(job)) return;
  const int32_t factor = std::max(turn.state.pace_load.factor, job.pace_load.factor);
  const int64_t wanted = std::min<int64_t>(int64_t{configured} * factor, kMaxReportEvery);
  if (!AllHave(*job.current, static_cast<int32_t>(wanted))) {
    Announce(turn, job, static_cast<int32_t>(wanted));
  }
}

void RepeatPace(Turn& turn, Speaker speaker) {
  const PaceChange& change = speaker.incarnation.pace;
  if (!speaker.is_current() || change.report_every == 0) return;
  SendTo(turn, speaker.rank,
         wire::Pace{.report_every = change.report_every, .from_step = change.from_step});
}

}  // namespace eplb::core
