// Views of the core's jobs: read only.
#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "placement/policies/registry.h"
#include "server/core/core.h"
#include "server/core/decisions/gpu_speeds.h"
#include "server/core/decisions/plans.h"
#include "server/core/decisions/prices.h"
#include "server/core/decisions/watchdog.h"
#include "server/core/ranks/run_registry.h"
#include "server/core/ranks/stall.h"
#include "server/core/state/ending.h"
#include "server/core/state/sentences.h"
#include "server/core/state/state.h"
#include "server/core/state/step_rate.h"
#include "server/core/values/measured.h"

namespace eplb::core {
namespace {

constexpr absl::Duration kRefusalShown = absl::Minutes(10);

std::vector<RankView> RanksOf(const Job& job, absl::Time now) {
  const Run& run = *job.current;
  std::vector<RankView> views;
  views.reserve(run.ranks.size());
  for (int32_t index = 0; index < run.world_size(); ++index) {
    const Rank& rank = run.ranks[index];
    views.push_back({.rank = index,
                     .gpu = run.grid.GpuOf(RankId{index}).value,
                     .connected = rank.session != 0,
                     .running_version = rank.running_version,
                     .prepared_version = rank.prepared_version,
                     .step = rank.step,
                     .state = RankStateOf(run, rank),
                     .away = rank.session == 0 && rank.away_since < now ? now - rank.away_since
                                                                        : absl::ZeroDuration(),
                     .answer = job.proposal ? std::optional(rank.answer) : std::nullopt,
                     .answer_seconds = AboveZero(rank.answer_seconds),
                     .pause_seconds = AboveZero(rank.pause_seconds),
                     .step_seconds = AboveZero(rank.step_seconds),
                     .dropped_steps = rank.dropped_steps,
                     .library_version = rank.library_version,
                     .transport = rank.transport});
  }
  return views;
}

int64_t LastSwitchedStep(const Job& job) {
  const auto found = std::find_if(job.plans.rbegin(), job.plans.rend(),
                                  [](const Plan& plan) { return plan.switched_step > 0; });
  return found == job.plans.rend() ? 0 : found->switched_step;
}

// Decides for every view whether the job has measured figures. Empty: it has.
std::string NotMeasuredReason(const Job& job) {
  const Windows& windows = job.windows;
  if (windows.measured) return "";
  if (!job.current) return "no rank has registered since the daemon started";
  if (windows.newest.coverage == 0) return "no load window is complete yet";
  const std::string steps =
      absl::StrCat("steps ", windows.newest.first_step, "..", windows.newest.last_step);
  if (!windows.newest.has_tokens) return absl::StrCat("no tokens were counted in ", steps);
  return absl::StrCat("the placements that ", steps, " ran under are not all known");
}

void ShowMeasured(const State& state, const Job& job, JobView& view) {
  view.not_measured_reason = NotMeasuredReason(job);
  if (const std::optional<Measured>& measured = job.windows.measured) {
    view.balancedness = measured->balancedness;
    view.measured_split = measured->split;
    view.layer_balancedness = measured->layer_balancedness;
    view.balancedness_static = measured->balancedness_static;
    view.balancedness_without_eplb = measured->balancedness_without_eplb;
    view.worse_reason = WorseText(job.windows);
    view.measured_first_step = measured->first_step;
    view.measured_last_step = measured->last_step;
  }
  if (const Plan* plan = NewestSwitched(job)) {
    view.balancedness_predicted = plan->balancedness_predicted;
    view.balancedness_seen = plan->balancedness_seen;
    view.prediction_error = plan->prediction_error;
    view.prediction_evidence = plan->prediction_evidence;
  }
  const bool chooses = TraitsOf(job.settings.policy_name).chooses;
  if (chooses && job.chooser.state != nullptr) view.candidates = CandidatesOf(*job.chooser.state);
  view.last_switched_step = LastSwitchedStep(job);
  view.spent_seconds = AboveZero(job.account.pause_seconds);
  if (!job.current) return;
  const double token_seconds = CostsOf(state, job).token_seconds;
  if (token_seconds > 0 && job.account.windows > 0) {
    view.saved_seconds = job.account.saved_peak_tokens * token_seconds;
  }
}

JobView ViewOf(const State& state, const Job& job, absl::Time now) {
  JobView view;
  view.job = job.name;
  view.state = StateOf(job);
  view.state_age = now - job.phase_since;
  view.waiting_for = WaitingFor(job);
  view.step = job.step;
  ShowMeasured(state, job, view);
  view.commits = job.commits;
  view.prediction_counts = job.prediction_counts;
  view.last_reason = job.last_reason;
  view.paused = job.paused;
  view.pause_reason = job.pause_reason;
  view.paused_by_lost_store = job.paused_by_lost_store;
  view.settings = job.settings;
  view.run_number = job.current ? job.current->run_number : job.run_number;
  view.term = job.term;
  view.candidate = CandidateOf(state.config, job, now);
  view.take_over_refused = TakeOverRefused(job, now);
  if (now - job.refused_at < kRefusalShown) view.refusal = job.refusal;
  view.refused_hellos = job.refused_hellos;
  view.stalled = job.stall.told.name;
  view.stalled_reason = job.stall.told.reason;
  view.windows_given_up = job.windows_given_up;
  view.stuck_seconds = absl::ToDoubleSeconds(StuckFor(state.config, job, now));
  if (job.current) {
    view.run_id = job.current->name;
    view.shape = job.current->shape;
    view.world_size = job.current->world_size();
    view.connected_ranks = job.current->num_connected;
    view.report_every = job.current->report_every;
    view.step_seconds = AboveZero(SecondsPerStep(job.current->rate));
    if (job.current->ending == Ending::kLive) view.not_counting_reason = job.not_counting;
    view.coverage_now = CoverageNow(job);
    view.reduce = job.current->reduce == wire::Reduce::kRoot ? "root" : "rank";
    view.split = wire::SplitName(job.current->split);
    view.model_layers = job.current->model_layers;
    view.took_over = job.current->took_over;
    view.ranks = RanksOf(job, now);
    view.gpu_speeds = SpeedViewsOf(job);
  }
  if (const RunEnd* end = EndOf(job)) {
    view.ending = end->how;
    view.end_reason = end->reason;
    view.led_elsewhere = end->elsewhere;
    view.run_id = end->run_id;
    view.world_size = end->world_size;
    view.step = std::max(view.step, end->step);
  }
  if (job.last_known) {
    view.version = job.last_known->version;
    view.digest = job.last_known->digest;
  }
  view.last_window_first_step = job.windows.newest.first_step;
  view.last_window_last_step = job.windows.newest.last_step;
  view.coverage = AboveZero(job.windows.newest.coverage);
  return view;
}

absl::Status NoSuchJob(const std::string& job) { return NotFound("no job ", job); }

}  // namespace

std::vector<JobView> Core::Jobs(absl::Time now) const {
  std::vector<JobView> views;
  views.reserve(state_->jobs.size());
  for (const auto& [name, job] : state_->jobs) views.push_back(ViewOf(*state_, job, now));
  return views;
}

absl::StatusOr<JobView> Core::Job(const std::string& job, absl::Time now) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  return ViewOf(*state_, found->second, now);
}

absl::StatusOr<wire::PlacementBody> Core::PlacementInForce(const std::string& job) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  if (!found->second.last_known) {
    return NotFound("the placement that job ", job, " runs is not known");
  }
  const LastKnownPlacement& known = *found->second.last_known;
  return wire::PlacementBody{known.version, known.digest, *known.placement};
}

absl::StatusOr<int64_t> Core::NextVersion(const std::string& job) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  return found->second.next_version;
}

absl::StatusOr<std::vector<Plan>> Core::Plans(const std::string& job, int32_t limit) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  const std::deque<Plan>& plans = found->second.plans;
  const auto count = std::min<ptrdiff_t>(std::max(limit, 0), std::ssize(plans));
  return std::vector<Plan>(plans.rbegin(), plans.rbegin() + count);
}

absl::StatusOr<Plan> Core::OnePlan(const std::string& job, int64_t plan) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  const std::deque<Plan>& plans = found->second.plans;
  const auto one =
      std::ranges::find_if(plans, [plan](const Plan& other) { return other.plan == plan; });
  if (one != plans.end()) return *one;
  const std::string kept =
      plans.empty() ? "none was made yet"
                    : absl::StrCat(plans.front().plan, "..", plans.back().plan, " are kept");
  return NotFound("job ", job, " has no decision ", plan, ": ", kept);
}

absl::StatusOr<WindowView> Core::NewestWindow(const std::string& job) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  if (found->second.windows.complete.empty()) {
    return NotFound("job ", job, " has no complete window yet");
  }
  const Window& window = found->second.windows.complete.back();
  // Which GPU got which tokens of a batch is known to the ranks alone.
  const bool equal = !found->second.current || found->second.current->split == SplitMode::kEqual;
  return WindowView{window.first_step, window.last_step, window.load,
                    equal ? window.on_gpus : nullptr};
}

absl::StatusOr<int64_t> Core::RollbackTarget(const std::string& job,
                                             std::optional<int64_t> to_version) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  return RollbackTargetOf(found->second, to_version);
}

absl::StatusOr<LeaderView> Core::Leader(const std::string& job, const std::string& run_id) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  // Also one that gathers: its other ranks may be at the daemon that asks for it.
  for (const auto* run : {&found->second.current, &found->second.candidate}) {
    if (!run->has_value() || (*run)->name != run_id) continue;
    return LeaderView{.term = found->second.term,
                      .connected_ranks = (*run)->num_connected,
                      .world_size = (*run)->world_size()};
  }
  return NotFound("job ", job, " has no run ", run_id, " here");
}

std::vector<RefusedJob> Core::Refusals() const {
  return {state_->refusals.begin(), state_->refusals.end()};
}

const Counters& Core::counters() const { return state_->counters; }

int64_t Core::window_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, job] : state_->jobs) bytes += BytesOf(job.windows);
  return bytes;
}

absl::Status Core::Readiness() const {
  if (state_->draining) return Unavailable("the daemon drains");
  if (!state_->term_stored) return Unavailable("the term cannot be stored");
  for (const auto& [name, job] : state_->jobs) {
    if (job.store_error.ok()) continue;
    return Unavailable("job ", name, " cannot be stored: ", job.store_error.ToString());
  }
  return absl::OkStatus();
}

}  // namespace eplb::core
