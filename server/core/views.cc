// What the daemon tells about its jobs: read only.
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/evaluate.h"
#include "server/core/core.h"
#include "server/core/plans.h"
#include "server/core/sentences.h"
#include "server/core/state.h"
#include "server/core/watchdog.h"

namespace eplb::core {
namespace {

const char* NameOf(Answer answer) {
  switch (answer) {
    case Answer::kNone:
      return "none";
    case Answer::kReady:
      return "ready";
    case Answer::kApplied:
      return "applied";
    case Answer::kFailed:
      return "failed";
  }
  return "";
}

std::string NameOfEnding(const Incarnation& incarnation) {
  switch (incarnation.ending) {
    case Ending::kLive:
      return "";
    case Ending::kLost:
      return "lost";
    case Ending::kFinal:
      return incarnation.num_finished == incarnation.world_size() ? "finished" : "failed";
  }
  return "";
}

std::vector<RankView> RanksOf(const Job& job, absl::Time now) {
  const Incarnation& incarnation = *job.current;
  std::vector<RankView> views;
  views.reserve(incarnation.ranks.size());
  for (int32_t index = 0; index < incarnation.world_size(); ++index) {
    const Rank& rank = incarnation.ranks[index];
    views.push_back({.rank = index,
                     .connected = rank.session != 0,
                     .running_version = rank.running_version,
                     .ready_version = rank.ready_version,
                     .step = rank.step,
                     .away = rank.session == 0 && rank.away_since < now ? now - rank.away_since
                                                                        : absl::ZeroDuration(),
                     .answer = job.proposal ? NameOf(rank.answer) : "",
                     .answer_seconds = rank.answer_seconds,
                     .pause_seconds = rank.pause_seconds,
                     .dropped_steps = rank.dropped_steps,
                     .library_version = rank.library_version,
                     .transport = rank.transport});
  }
  return views;
}

// 0 when there is no window yet, or none of the shape in force.
double BalancednessOf(const Job& job) {
  if (job.windows.complete.empty() || !job.known) return 0;
  const absl::StatusOr<Evaluation> evaluation =
      Evaluate(*job.windows.complete.back().load, *job.known->placement);
  return evaluation.ok() ? evaluation->mean_balancedness : 0;
}

JobView ViewOf(const Config& config, const Job& job, absl::Time now) {
  JobView view;
  view.job = job.name;
  view.state = PhaseName(job.phase);
  view.state_age = now - job.phase_since;
  view.waiting_for = WaitingFor(job);
  view.step = job.step;
  view.balancedness = BalancednessOf(job);
  view.commits = job.commits;
  view.last_reason = job.last_reason;
  view.paused = job.paused;
  view.pause_reason = job.pause_reason;
  view.settings = job.settings;
  view.stuck_seconds = absl::ToDoubleSeconds(StuckFor(config, job, now));
  if (job.current) {
    view.incarnation = job.current->name;
    view.shape = job.current->shape;
    view.world_size = job.current->world_size();
    view.connected_ranks = job.current->num_connected;
    view.report_every = job.current->report_every;
    view.reduce = job.current->reduce == wire::Reduce::kRoot ? "root" : "rank";
    view.model_layers = job.current->model_layers;
    view.ending = NameOfEnding(*job.current);
    if (!view.ending.empty()) view.end_reason = job.current->end_reason;
    view.took_over = job.current->took_over;
    view.ranks = RanksOf(job, now);
  }
  if (job.known) {
    view.version = job.known->version;
    view.digest = job.known->digest;
  }
  if (!job.windows.complete.empty()) {
    view.last_window_first_step = job.windows.complete.back().first_step;
    view.last_window_last_step = job.windows.complete.back().last_step;
    view.coverage = job.windows.complete.back().coverage;
  }
  return view;
}

absl::Status NoSuchJob(const std::string& job) {
  return absl::NotFoundError(absl::StrCat("no job ", job));
}

}  // namespace

std::vector<JobView> Core::Jobs(absl::Time now) const {
  std::vector<JobView> views;
  views.reserve(state_->jobs.size());
  for (const auto& [name, job] : state_->jobs) views.push_back(ViewOf(state_->config, job, now));
  return views;
}

absl::StatusOr<JobView> Core::Job(const std::string& job, absl::Time now) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  return ViewOf(state_->config, found->second, now);
}

absl::StatusOr<wire::PlacementBody> Core::PlacementInForce(const std::string& job) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  if (!found->second.known) {
    return absl::NotFoundError(absl::StrCat("the placement that job ", job, " runs is not known"));
  }
  const Known& known = *found->second.known;
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

absl::StatusOr<WindowView> Core::NewestWindow(const std::string& job) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  if (found->second.windows.complete.empty()) {
    return absl::NotFoundError(absl::StrCat("job ", job, " has no complete window yet"));
  }
  const Window& window = found->second.windows.complete.back();
  return WindowView{window.first_step, window.last_step, window.load};
}

absl::StatusOr<int64_t> Core::RollbackTarget(const std::string& job,
                                             std::optional<int64_t> to_version) const {
  const auto found = state_->jobs.find(job);
  if (found == state_->jobs.end()) return NoSuchJob(job);
  return RollbackTargetOf(found->second, to_version);
}

const Counters& Core::counters() const { return state_->counters; }

absl::Status Core::Readiness() const {
  if (state_->draining) return absl::UnavailableError("the daemon drains");
  if (!state_->term_stored) return absl::UnavailableError("the term cannot be stored");
  for (const auto& [name, job] : state_->jobs) {
    if (job.store_error.ok()) continue;
    return absl::UnavailableError(
        absl::StrCat("job ", name, " cannot be stored: ", job.store_error.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace eplb::core
