// Fills the messages that show the core's jobs: read only.
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "proto/wire/convert.h"
#include "server/core/core.h"
#include "server/core/decisions/gpu_speeds.h"
#include "server/core/decisions/plans.h"
#include "server/core/decisions/prices.h"
#include "server/core/decisions/saved_time.h"
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

v1::RankState RankStateOf(const Run& run, const Rank& rank) {
  if (!rank.said_hello) return v1::RANK_STATE_EXPECTED;
  if (rank.session != 0) return v1::RANK_STATE_CONNECTED;
  if (rank.finished) return v1::RANK_STATE_FINISHED;
  if (rank.failed) return v1::RANK_STATE_FAILED;
  return run.ending != Ending::kLive && rank.cut ? v1::RANK_STATE_LOST : v1::RANK_STATE_AWAY;
}

// The answers have the values of the message in their order, without the unspecified one.
v1::RankAnswer AnswerOf(Answer answer) {
  static_assert(static_cast<int>(Answer::kFailed) + 1 == v1::RankAnswer_MAX);
  return static_cast<v1::RankAnswer>(static_cast<int>(answer) + 1);
}

void ShowRanks(const Job& job, absl::Time now, v1::JobStatus& status) {
  const Run& run = *job.current;
  status.mutable_ranks()->Reserve(run.world_size());
  for (int32_t index = 0; index < run.world_size(); ++index) {
    const Rank& rank = run.ranks[index];
    v1::RankStatus& out = *status.add_ranks();
    out.set_rank(static_cast<uint32_t>(index));
    out.set_gpu(static_cast<uint32_t>(run.grid.GpuOf(RankId{index}).value));
    out.set_connected(rank.session != 0);
    out.set_running_version(static_cast<uint64_t>(rank.running_version));
    out.set_prepared_version(static_cast<uint64_t>(rank.prepared_version));
    out.set_step(static_cast<uint64_t>(rank.step));
    out.set_state(RankStateOf(run, rank));
    if (rank.session == 0 && rank.away_since < now) {
      out.set_away_seconds(absl::ToDoubleSeconds(now - rank.away_since));
    }
    if (job.proposal) out.set_answer(AnswerOf(rank.answer));
    if (rank.answer_seconds > 0) out.set_answer_seconds(rank.answer_seconds);
    if (rank.pause_seconds > 0) out.set_pause_seconds(rank.pause_seconds);
    if (rank.step_seconds > 0) out.set_step_seconds(rank.step_seconds);
    out.set_dropped_steps(static_cast<uint64_t>(rank.dropped_steps));
    out.set_library_version(rank.library_version);
    wire::ToProto(rank.transport, out.mutable_transport());
  }
}

uint64_t LastSwitchedStep(const Job& job) {
  const auto found = std::find_if(job.plans.rbegin(), job.plans.rend(),
                                  [](const v1::Plan& plan) { return plan.switched_step() > 0; });
  return found == job.plans.rend() ? 0 : found->switched_step();
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

void ShowMeasured(const Job& job, v1::JobStatus& status) {
  status.set_not_measured_reason(NotMeasuredReason(job));
  const std::optional<Measured>& measured = job.windows.measured;
  if (!measured) return;
  status.set_balancedness(measured->balancedness);
  status.set_measured_split(wire::SplitName(measured->split));
  for (const std::optional<double>& layer : measured->layer_balancedness) {
    status.add_layer_balancedness(layer.value_or(0));
  }
  if (const auto& figure = measured->balancedness_static) status.set_balancedness_static(*figure);
  if (const auto& figure = measured->balancedness_without_eplb) {
    status.set_balancedness_without_eplb(*figure);
  }
  status.set_worse_reason(WorseText(job.windows));
  status.set_measured_first_step(static_cast<uint64_t>(measured->first_step));
  status.set_measured_last_step(static_cast<uint64_t>(measured->last_step));
}

// Copies all of a plan but its times, which may be many times as long. They are moved out
// meanwhile: a copy of chosen fields by reflection takes longer than that of all.
v1::Plan WithoutTimes(v1::Plan& plan) {
  std::unique_ptr<v1::PlanTimes> times(plan.release_times());
  v1::Plan copy = plan;
  plan.set_allocated_times(times.release());
  return copy;
}

void ShowDecisions(const State& state, Job& job, v1::JobStatus& status) {
  if (const v1::Plan* plan = NewestSwitched(job)) {
    if (plan->has_balancedness_predicted()) {
      status.set_balancedness_predicted(plan->balancedness_predicted());
    }
    if (plan->has_balancedness_seen()) status.set_balancedness_seen(plan->balancedness_seen());
    if (plan->has_prediction_error()) status.set_prediction_error(plan->prediction_error());
    if (plan->has_prediction_evidence()) {
      status.set_prediction_evidence(plan->prediction_evidence());
    }
  }
  *status.mutable_prediction_counts() = job.decisions.prediction_counts;
  if (job.settings.policy.chooses && job.decisions.chooser.state != nullptr) {
    AddCandidates(*job.decisions.chooser.state, status.mutable_candidates());
  }
  if (const uint64_t step = LastSwitchedStep(job); step > 0) status.set_last_switched_step(step);
  status.set_commits(static_cast<uint64_t>(job.decisions.commits));
  status.set_last_reason(job.decisions.last_reason);
  if (!job.plans.empty()) {
    v1::Plan& newest = *status.mutable_newest_plan();
    newest = WithoutTimes(job.plans.back());
    newest.clear_candidates();
    newest.clear_scenarios();
    newest.clear_objective();
  }
  ShowSaved(state, job, status);
}

void ShowSwitchTime(const Job& job, v1::JobStatus& status) {
  const SwitchTime time = SwitchTimeOf(job);
  v1::SwitchTime& out = *status.mutable_switch_time();
  out.set_decide_steps(time.decide_steps);
  out.set_vote_every(static_cast<uint32_t>(time.vote_every));
  out.set_rows_per_chunk(static_cast<uint64_t>(time.rows_per_chunk));
  out.set_seconds_per_byte(time.seconds_per_byte);
}

void ShowRun(const Job& job, absl::Time now, v1::JobStatus& status) {
  const Run& run = *job.current;
  wire::ToProto(run.shape, status.mutable_shape());
  status.set_run_id(run.name);
  status.set_world_size(static_cast<uint32_t>(run.world_size()));
  status.set_connected_ranks(static_cast<uint32_t>(run.num_connected));
  status.set_report_every(static_cast<uint32_t>(run.report_every));
  if (const double seconds = SecondsPerStep(run.rate); seconds > 0) {
    status.set_step_seconds(seconds);
  }
  if (run.ending == Ending::kLive) status.set_not_counting_reason(job.reports.not_counting);
  if (const auto coverage = CoverageNow(job)) status.set_coverage_now(*coverage);
  status.set_reduce(run.reduce == wire::Reduce::kRoot ? "root" : "rank");
  status.set_split(wire::SplitName(run.split));
  status.mutable_model_layers()->Assign(run.model_layers.begin(), run.model_layers.end());
  status.set_took_over(run.took_over);
  status.set_engine(run.asking.engine);
  ShowSwitchTime(job, status);
  ShowRanks(job, now, status);
  ShowSpeeds(job, status);
}

void ShowCandidate(const Config& config, const Job& job, absl::Time now, v1::JobStatus& status) {
  const Run& candidate = *job.candidate;
  v1::CandidateStatus& out = *status.mutable_candidate();
  out.set_run_id(candidate.name);
  out.set_world_size(static_cast<uint32_t>(candidate.world_size()));
  out.set_registered_ranks(static_cast<uint32_t>(candidate.num_hello));
  out.set_connected_ranks(static_cast<uint32_t>(candidate.num_connected));
  out.set_seconds(absl::ToDoubleSeconds(now - candidate.since));
  out.set_waits(CandidateWaitsFor(job, now));
  out.set_deadline_seconds(absl::ToDoubleSeconds(config.gather_deadline));
}

// Progress of the job, and what stops it.
void ShowState(const State& state, const Job& job, absl::Time now, v1::JobStatus& status) {
  status.set_state(StateOf(job));
  status.set_state_seconds(absl::ToDoubleSeconds(now - job.in_phase.since));
  status.set_waiting_for(WaitingFor(job));
  status.set_stuck_seconds(absl::ToDoubleSeconds(StuckFor(state.config, job, now)));
  status.set_stalled(job.stall.told.name);
  status.set_stalled_reason(job.stall.told.reason);
  status.set_paused(job.orders.paused);
  status.set_pause_reason(job.orders.pause_reason);
  status.set_paused_by_lost_store(job.orders.paused_by_lost_store);
  status.set_take_over_refused(TakeOverRefused(job, now));
  if (now - job.refused.at < kRefusalShown) status.set_refusal(job.refused.reason);
  status.set_refused_hellos(static_cast<uint64_t>(job.refused.count));
  if (job.current) status.set_step(static_cast<uint64_t>(job.step));
}

void Show(const State& state, Job& job, absl::Time now, v1::JobStatus& status) {
  status.set_job(job.name);
  status.set_term(static_cast<uint64_t>(job.term));
  status.set_run_number(
      static_cast<uint64_t>(job.current ? job.current->run_number : job.owner.run_number));
  wire::ToProto(wire::PatchOf(job.settings), status.mutable_policy());
  status.mutable_policy()->set_every_steps(static_cast<uint32_t>(EverySteps(job)));
  ShowState(state, job, now, status);
  ShowMeasured(job, status);
  ShowDecisions(state, job, status);
  wire::ToProto(TopologyOptions(), status.mutable_shape());
  if (job.last_known) wire::ToProto(job.last_known->placement->topology(), status.mutable_shape());
  if (job.current) ShowRun(job, now, status);
  if (job.candidate) ShowCandidate(state.config, job, now, status);
  if (const v1::RunEnd* end = EndOf(job)) {
    status.set_ending(end->ending());
    status.set_end_reason(end->reason());
    status.set_led_elsewhere(end->elsewhere());
    status.set_run_id(end->run_id());
    status.set_world_size(end->world_size());
    status.set_step(std::max(status.step(), end->step()));
  }
  const Digest digest = job.last_known ? job.last_known->digest : Digest();
  status.set_digest(digest.bytes.data(), digest.bytes.size());
  if (job.last_known) status.set_version(static_cast<uint64_t>(job.last_known->version));
  const auto& newest = job.windows.newest;
  status.set_last_window_first_step(static_cast<uint64_t>(newest.first_step));
  status.set_last_window_last_step(static_cast<uint64_t>(newest.last_step));
  if (newest.coverage > 0) status.set_coverage(newest.coverage);
  status.set_windows_given_up(static_cast<uint64_t>(job.reports.windows_given_up));
}

absl::Status NoSuchJob(const std::string& job) { return NotFound("no job ", job); }

}  // namespace

std::vector<v1::JobStatus> Core::Jobs(absl::Time now) const {
  std::vector<v1::JobStatus> jobs(state_->jobs.size());
  auto status = jobs.begin();
  for (auto& [name, job] : state_->jobs) Show(*state_, job, now, *status++);
  return jobs;
}

absl::StatusOr<v1::JobStatus> Core::Job(const std::string& job, absl::Time now) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  v1::JobStatus status;
  Show(*state_, found->second, now, status);
  return status;
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
  return found->second.versions.next;
}

absl::StatusOr<std::vector<v1::Plan>> Core::Plans(const std::string& job, int32_t limit) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  std::deque<v1::Plan>& plans = found->second.plans;
  const auto count = std::min<ptrdiff_t>(std::max(limit, 0), std::ssize(plans));
  std::vector<v1::Plan> newest(static_cast<size_t>(count));
  std::transform(plans.rbegin(), plans.rbegin() + count, newest.begin(), &WithoutTimes);
  return newest;
}

absl::StatusOr<v1::Plan> Core::OnePlan(const std::string& job, int64_t plan) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  const std::deque<v1::Plan>& plans = found->second.plans;
  const auto one = std::ranges::find_if(
      plans, [plan](const v1::Plan& other) { return std::cmp_equal(other.plan(), plan); });
  if (one != plans.end()) return *one;
  const std::string kept =
      plans.empty() ? "none was made yet"
                    : absl::StrCat(plans.front().plan(), "..", plans.back().plan(), " are kept");
  return NotFound("job ", job, " has no decision ", plan, ": ", kept);
}

absl::StatusOr<WindowView> Core::NewestWindow(const std::string& job) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  if (found->second.windows.complete.empty()) {
    return NotFound("job ", job, " has no load window: none is complete since the daemon started, ",
                    "or its ranks have left");
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

std::vector<v1::Refusal> Core::Refusals(absl::Time now) const {
  std::vector<v1::Refusal> refusals(state_->refusals.size());
  auto out = refusals.begin();
  for (const RefusedJob& one : state_->refusals) {
    out->set_job(one.job);
    out->set_reason(one.reason);
    out->set_count(static_cast<uint64_t>(one.count));
    out->set_seconds_ago(absl::ToDoubleSeconds(now - one.at));
    ++out;
  }
  return refusals;
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
    if (job.store.error.ok()) continue;
    return Unavailable("job ", name, " cannot be stored: ", job.store.error.ToString());
  }
  return absl::OkStatus();
}

}  // namespace eplb::core
