#include "server/core/ranks/report_interval.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"

#include "server/core/ranks/window_pace.h"

namespace eplb::core {
namespace {

constexpr int64_t kLeadWindows = 2;      // between the newest report and the change
constexpr int64_t kPatienceWindows = 8;  // after the change, for a window of the new length
constexpr int64_t kMaxPeriod = int64_t{1} << 40;  // steps; lengths are at most 2^20

// A multiple of every length that some rank may have, as far as that is below kMaxPeriod.
int64_t CommonPeriod(const Run& run, int32_t wanted) {
  int64_t period = std::lcm<int64_t>(run.report_every, wanted);
  for (const Rank& rank : run.ranks) {
    if (rank.report_every == 0 || period % rank.report_every == 0) continue;
    const int64_t common = std::lcm<int64_t>(period, rank.report_every);
    if (common <= kMaxPeriod) period = common;
  }
  return period;
}

bool AllHave(const Run& run, int32_t report_every) {
  return run.report_every == report_every && std::ranges::all_of(run.ranks, [&](const Rank& rank) {
           return rank.report_every == report_every;
         });
}

void Adjust(ReportOverload& load, bool overloaded, absl::Time now) {
  if (overloaded) {
    load.calm_since = now;
    if (now - load.raised_at < kRaiseInterval) return;
    load.raised_at = now;
    load.factor = std::min(2 * load.factor, kMaxReportIntervalFactor);
  } else if (load.factor > 1 && now - load.calm_since >= kCalmInterval) {
    load.calm_since = now;
    load.factor /= 2;
  }
}

int32_t NumReporters(const Run& run) {
  if (run.reduce == wire::Reduce::kRoot) return 1;
  return run.world_size() / run.grid.expert_tensor_parallel();
}

// Why windows are longer than configured; empty when they are not.
std::string LongerText(const State& state, const Job& job) {
  const int32_t factor = std::max(state.report_overload.factor, job.reports.overload.factor);
  if (factor == 1) return "";
  const char* const why = state.report_overload.factor >= job.reports.overload.factor
                              ? "the daemon is behind with the reports"
                              : "the job's ranks report above limits.messages_per_second";
  return absl::StrCat("; ", why, ", so windows are ", factor, " times as long as configured");
}

void Announce(DecisionContext& context, Job& job, int32_t wanted) {
  Run& run = *job.current;
  const int64_t period = CommonPeriod(run, wanted);
  const int64_t lead = kLeadWindows * std::max(run.report_every, wanted);
  const int64_t from_step = (job.step + 1 + lead + period - 1) / period * period;
  run.report_interval_change = {.report_every = wanted, .from_step = from_step};
  SendToAll(context, run, wire::SetReportInterval{.report_every = wanted, .from_step = from_step});
  if (run.told_report_every == wanted) return;  // said before, without effect
  run.told_report_every = wanted;
  RecordNotice(
      context, job, "report_interval",
      absl::StrCat("the ranks are asked for windows of ", wanted, " steps from step ", from_step,
                   " on, until now ", run.report_every, LongerText(context.state, job)));
}

bool HasChanged(const Windows& windows, const ReportIntervalChange& change) {
  if (windows.complete.empty()) return false;
  const Window& newest = windows.complete.back();
  return newest.first_step >= change.from_step &&
         newest.last_step - newest.first_step + 1 == change.report_every;
}

// True while a change is on its way.
bool IsChanging(Job& job) {
  Run& run = *job.current;
  const ReportIntervalChange change = run.report_interval_change;
  if (change.report_every == 0) return false;
  if (HasChanged(job.windows, change)) {
    run.report_every = change.report_every;
    for (Rank& rank : run.ranks) rank.report_every = change.report_every;
    run.report_interval_change = {};
    return false;
  }
  const int64_t longest = std::max(run.report_every, change.report_every);
  if (job.step < change.from_step + kPatienceWindows * longest) return true;
  run.report_interval_change = {};
  return false;
}

}  // namespace

void NoteDroppedReports(State& state, const Tick& tick, absl::Time now) {
  ReportOverload& common = state.report_overload;
  Adjust(common, tick.behind || tick.dropped_reports > common.dropped_reports, now);
  common.dropped_reports = std::max(common.dropped_reports, tick.dropped_reports);
  std::map<std::string, int32_t> reporters;  // above their limit, by job
  for (const LimitedReports& limited : tick.limited) {
    const auto binding = state.bindings.find(limited.session);
    if (binding == state.bindings.end()) continue;
    Job& job = state.jobs.at(binding->second.job);
    if (!job.current || job.current->name != binding->second.run_id) continue;
    job.current->ranks[binding->second.rank].reports_dropped += limited.count;
    job.reports.overload.dropped_reports += limited.count;
    ++reporters[job.name];
  }
  for (auto& [name, job] : state.jobs) {
    const auto found = reporters.find(name);
    const bool most = found != reporters.end() && 2 * found->second > NumReporters(*job.current);
    Adjust(job.reports.overload, most, now);
  }
}

void CheckReportInterval(DecisionContext& context, Job& job) {
  const int32_t configured = context.state.config.report_every_steps;
  if (configured == 0 || !job.current || job.current->ending != Ending::kLive ||
      job.current->num_hello < job.current->world_size() || !job.current->asking.engine.empty()) {
    return;
  }
  if (IsChanging(job)) return;
  const int32_t factor =
      std::max(context.state.report_overload.factor, job.reports.overload.factor);
  const int64_t wanted =
      std::min<int64_t>(int64_t{WantedWindowSteps(job, configured)} * factor, kMaxReportEvery);
  if (!AllHave(*job.current, static_cast<int32_t>(wanted))) {
    Announce(context, job, static_cast<int32_t>(wanted));
  }
}

void RepeatReportInterval(DecisionContext& context, Sender sender) {
  const ReportIntervalChange& change = sender.run.report_interval_change;
  if (!sender.is_current() || change.report_every == 0) return;
  SendTo(
      context, sender.rank,
      wire::SetReportInterval{.report_every = change.report_every, .from_step = change.from_step});
}

}  // namespace eplb::core
