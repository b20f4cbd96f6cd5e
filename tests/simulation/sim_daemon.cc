#include "tests/simulation/sim_daemon.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"

#include "server/core/solution.h"

namespace eplb::simulation {
namespace {

constexpr int kMaxStoreFailures = 4;  // same as server/runner
constexpr absl::Duration kTick = absl::Seconds(1);

}  // namespace

SimDaemon::SimDaemon(Context* context, Truth* truth, Promises* promises, std::string name,
                     core::Config config)
    : context_(*context),
      truth_(*truth),
      promises_(*promises),
      name_(std::move(name)),
      config_(std::move(config)) {}

void SimDaemon::ReplaceDisk(Disk other) {
  const bool works = disk.works;
  disk = std::move(other);
  disk.works = works;
  promises_.StoreReplaced(name_);
}

void SimDaemon::Ask(const std::string& job, bool pause) {
  if (!serves()) return;
  const absl::StatusOr<v1::JobStatus> view = core_->Job(job, Clock());
  if (!view.ok()) return;
  const int64_t ticket = ++last_ticket_;
  asked_[ticket] = {job, pause};
  core::Change change{.ticket = ticket,
                      .job = job,
                      .request_id = absl::StrCat(name_, "-", ticket),
                      .expect_version = view->version(),
                      .actor = "operator",
                      .verb = core::Resume{}};
  if (pause) {
    change.verb = core::Pause{};
  } else {
    promises_.Resumed(name_, job);  // also where the answer is lost
  }
  Soon([this, change = std::move(change)] { OnEvent(change); });
}

int64_t SimDaemon::Leads(const std::string& job, const std::string& run_id) const {
  if (!serves()) return 0;
  const absl::StatusOr<core::LeaderView> leader = core_->Leader(job, run_id);
  return leader.ok() && leader->connected_ranks > 0 ? leader->term : 0;
}

void SimDaemon::Start() {
  if (serves() || !disk.works) return;
  ++process_;
  clock_offset_ = context_.Between(-absl::Hours(24 * 365), absl::Hours(24 * 365));
  std::vector<core::StoredJob> jobs;
  for (const auto& [job, stored] : disk.jobs) {
    jobs.push_back(stored);
    for (const auto& [number, plan] : disk.plans[job]) jobs.back().plans.push_back(plan);
  }
  core_ = std::make_unique<core::Core>(config_, disk.term, std::move(jobs), Clock());
  disk.term = core_->term();
  frozen_until_ = context_.now();
  kill_after_effects_ = -1;
  stuck_.clear();
  context_.Count("daemon_started");
  context_.Trace(name_, " serves with term ", core_->term(), ", ", disk.jobs.size(),
                 " jobs stored");
  Tick();
}

void SimDaemon::Kill() {
  if (!serves()) return;
  context_.Count("daemon_killed");
  context_.Trace(name_, " is killed");
  core_.reset();
  for (const auto& [session, stream] : std::exchange(streams_, {})) {
    stream->DropDaemon(context_.Between(absl::ZeroDuration(), absl::Seconds(2)));
  }
}

void SimDaemon::Freeze(absl::Duration duration) {
  if (!serves()) return;
  context_.Count("daemon_frozen");
  context_.Trace(name_, " is frozen for ", absl::FormatDuration(duration));
  frozen_until_ = std::max(frozen_until_, context_.now() + duration);
}

void SimDaemon::Drain(absl::Duration grace) {
  if (!serves()) return;
  context_.Count("daemon_drained");
  Soon([this, grace] { OnEvent(core::DrainRequested{grace}); });
  context_.After(grace, [this, process = process_] {
    if (process == process_) Kill();
  });
}

bool SimDaemon::Accept(Stream* stream) {
  if (!serves()) return false;
  const core::SessionId session = ++last_session_;
  streams_[session] = stream;
  const auto is_open = [this, session, process = process_] {
    return process == process_ && streams_.count(session) > 0;
  };
  stream->daemon.on_up = [this, session, is_open](const wire::UpMessage& message) {
    const auto* hello = std::get_if<wire::Hello>(&message);
    if (hello != nullptr) {
      jobs_[session] = hello->job;
      highest_term_said_ = std::max(highest_term_said_, hello->highest_term);
    }
    Soon([this, session, is_open, message] {
      if (is_open()) OnEvent(core::SessionMessage{session, message});
    });
  };
  stream->daemon.on_closed = [this, session, is_open](const absl::Status& status) {
    Soon([this, session, is_open, status] {
      if (!is_open()) return;
      streams_.at(session)->CloseDown(absl::OkStatus());
      streams_.erase(session);
      OnEvent(core::SessionClosed{session, std::string(status.message())});
    });
  };
  return true;
}

void SimDaemon::Soon(std::function<void()> what) {
  context_.At(frozen_until_, [this, process = process_, what = std::move(what)] {
    if (process != process_ || !serves()) return;
    if (context_.now() < frozen_until_) {
      Soon(what);
    } else {
      what();
    }
  });
}

void SimDaemon::Tick() {
  Soon([this] {
    OnEvent(core::Tick{});
    if (!serves()) return;
    CheckStuck();
    context_.After(kTick, [this, process = process_] {
      if (process == process_) Tick();
    });
  });
}

void SimDaemon::OnEvent(core::Event event) {
  for (int failures = 0; failures < kMaxStoreFailures; ++failures) {
    const core::Decision decision = core_->Handle(event, Clock());
    if (!decision.effects.empty() || !std::holds_alternative<core::Tick>(event)) {
      CheckShown(decision);
    }
    std::optional<core::StoreFailed> failed;
    for (const core::Effect& effect : decision.effects) {
      if (std::holds_alternative<core::KeepWindow>(effect)) continue;  // nothing of it is kept here
      if (kill_after_effects_ >= 0 && kill_after_effects_-- == 0) {
        context_.Count("daemon_killed_between_effects");
        Kill();
        return;
      }
      if (!Execute(effect, failed)) break;
    }
    if (!failed) {
      NoteQuarantine();
      if (failures == 0) NoteWelcomed(event);
      return;
    }
    event = *std::move(failed);
  }
}

// Memory that a rank carried to this daemon holds from here on, as far as it was stored.
void SimDaemon::NoteWelcomed(const core::Event& event) {
  const auto* said = std::get_if<core::SessionMessage>(&event);
  const auto* hello = said == nullptr ? nullptr : std::get_if<wire::Hello>(&said->message);
  if (hello == nullptr || !streams_.contains(said->session) || !hello->memory.value) return;
  promises_.Carried(name_, hello->job, *hello->memory.value);
}

// The quarantine holds as far as the store has it.
void SimDaemon::NoteQuarantine() {
  for (const auto& [job, stored] : disk.jobs) {
    if (!IsQuarantined(job) || stored.memory.quarantine.empty()) continue;
    promises_.Quarantined(name_, job, RunOf(stored.memory.run_id));
  }
}

void SimDaemon::CheckShown(const core::Decision& decision) {
  const std::string process = absl::StrCat(name_, " ", process_);
  truth_.Check(process, *core_, Clock());
  for (const core::Effect& effect : decision.effects) {
    const auto* plan = std::get_if<core::StorePlan>(&effect);
    if (plan != nullptr) truth_.CheckPlan(process, plan->job, plan->plan);
  }
}

bool SimDaemon::Execute(const core::Effect& effect, std::optional<core::StoreFailed>& failed) {
  if (const auto* send = std::get_if<core::Send>(&effect)) {
    Send(*send);
  } else if (const auto* close = std::get_if<core::Close>(&effect)) {
    const auto found = streams_.find(close->session);
    if (found == streams_.end()) return true;
    Stream* const stream = found->second;
    streams_.erase(found);
    stream->daemon = {};
    stream->CloseDown(close->status);
    if (!close->status.ok()) context_.Count("session_refused");
    context_.Trace(name_, " closes session ", close->session, ": ", close->status.ToString());
    Soon([this, session = close->session] {
      OnEvent(core::SessionClosed{session, "closed by the daemon"});
    });
  } else if (const auto* store = std::get_if<core::Store>(&effect)) {
    if (!disk.works) failed = {store->job.job, absl::UnavailableError("disk full")};
    if (disk.works) disk.jobs.insert_or_assign(store->job.job, store->job);
  } else if (const auto* term = std::get_if<core::StoreTerm>(&effect)) {
    if (!disk.works) failed = {"", absl::UnavailableError("disk full")};
    if (disk.works) disk.term = term->term;
  } else if (const auto* solve = std::get_if<core::Solve>(&effect)) {
    Solve(*solve);
  } else if (const auto* forget = std::get_if<core::Forget>(&effect)) {
    disk.jobs.erase(forget->job);
    disk.plans.erase(forget->job);
  } else if (const auto* plan = std::get_if<core::StorePlan>(&effect)) {
    if (plan->plan.replaced_by() != 0) context_.Count("chunks_replaced");
    if (disk.works)
      disk.plans[plan->job].insert_or_assign(static_cast<int64_t>(plan->plan.plan()), plan->plan);
  } else if (const auto* reply = std::get_if<core::Reply>(&effect)) {
    OnReply(*reply);
  } else if (const auto* record = std::get_if<core::Record>(&effect)) {
    const v1::JobEvent& event = record->event;
    context_.Count(event.name());
    if (event.name() == "stuck") stuck_[event.job()] = true;
    context_.Trace(name_, " ", event.job(), " ", event.name(), " v", event.version(), ": ",
                   event.reason());
  }
  return !failed.has_value();
}

// I6: what goes out is on the disk; of a term, the ranks that have seen the one below it know it.
void SimDaemon::Send(const core::Send& send) {
  const auto* welcome = std::get_if<wire::Welcome>(&send.message);
  if (welcome != nullptr) CheckTerm(welcome->term, jobs_.at(send.session));
  const auto* propose = std::get_if<wire::Propose>(&send.message);
  if (propose != nullptr) CheckStored(*propose, jobs_.at(send.session));
  const auto found = streams_.find(send.session);
  if (found != streams_.end()) found->second->Down(send.message);
}

void SimDaemon::CheckTerm(int64_t term, const std::string& job) {
  const auto stored = disk.jobs.find(job);
  const int64_t remembered = stored == disk.jobs.end() ? 0 : stored->second.memory.term;
  if (term <= std::max(disk.term, std::max(highest_term_said_, remembered) + 1)) return;
  context_.Violation("I6: ", name_, " sent term ", term, ", stored is ", disk.term, " and for ",
                     job, " ", remembered, ", said was ", highest_term_said_);
}

void SimDaemon::CheckStored(const wire::Propose& propose, const std::string& job) {
  const auto stored = disk.jobs.find(job);
  if (stored == disk.jobs.end() || stored->second.next_version <= propose.version ||
      std::max(disk.term, stored->second.memory.term) < propose.term) {
    context_.Violation("I6: ", name_, " proposed version ", propose.version,
                       " before it was stored");
  }
  const absl::StatusOr<v1::JobStatus> view = core_->Job(job, Clock());
  promises_.Proposed(name_, job, RunOf(view->run_id()), propose.version);
}

void SimDaemon::OnReply(const core::Reply& reply) {
  const auto [job, pause] = asked_.at(reply.ticket);
  if (!reply.outcome.ok()) return;
  if (pause) promises_.Paused(name_, job);
}

void SimDaemon::Solve(const core::Solve& solve) {
  absl::Duration takes = context_.Between(absl::Milliseconds(1), absl::Seconds(3));
  const bool fails = context_.faults && context_.Chance(0.05);
  if (context_.faults && context_.Chance(0.02)) takes = absl::Seconds(90);
  Soon([this, started = core::SolveStarted{solve.job, solve.solve_id}] { OnEvent(started); });
  context_.After(takes, [this, solve, fails, process = process_] {
    if (process != process_) return;
    core::Solved solved = fails ? core::Solution(solve, absl::InternalError("the policy failed"))
                                : core::AnswerSolve(solve);
    Soon([this, solved = std::move(solved)] { OnEvent(solved); });
  });
}

// A state that is older than three of its deadlines has said so. Where a rank may answer after its
// next votes only, these come on top: not more than this with the steps of a simulated job.
void SimDaemon::CheckStuck() {
  constexpr absl::Duration kVotesAwaited = absl::Seconds(40);
  for (const v1::JobStatus& job : core_->Jobs(Clock())) {
    absl::Duration deadline = absl::InfiniteDuration();
    if (job.state() == v1::JOB_STATE_RECOVERING && job.connected_ranks() > 0)
      deadline = config_.prepare_deadline + kVotesAwaited;
    if (job.state() == v1::JOB_STATE_SOLVING) deadline = config_.solve_deadline;
    if (job.state() == v1::JOB_STATE_PREPARING) deadline = config_.prepare_deadline;
    if (job.state() == v1::JOB_STATE_VOTING) deadline = config_.voting_deadline;
    if (job.state() == v1::JOB_STATE_CANCELLING) deadline = config_.cancel_deadline + kVotesAwaited;
    const absl::Duration age = absl::Seconds(job.state_seconds());
    if (age < 2 * kTick) stuck_[job.job()] = false;
    if (job.waiting_for().find("run_id") != std::string::npos) continue;
    if (age <= 3 * deadline || stuck_[job.job()]) continue;
    context_.Violation("I12: job ", job.job(), " is ", v1::JobState_Name(job.state()), " for ",
                       absl::FormatDuration(age),
                       " and never said that it is stuck: ", job.waiting_for());
    stuck_[job.job()] = true;
  }
}

absl::Status SimDaemon::CheckIdle(const std::string& job, const std::string& run_id,
                                  const RunningPlacement& running) const {
  if (!serves()) return absl::UnavailableError("the daemon is down");
  const auto all = core_->Jobs(Clock());
  const auto view = std::find_if(all.begin(), all.end(),
                                 [&job](const v1::JobStatus& one) { return one.job() == job; });
  if (view == all.end()) return absl::NotFoundError("the daemon does not know the job");
  if (view->state() != v1::JOB_STATE_IDLE) {
    return absl::UnavailableError(absl::StrCat("the daemon is ", v1::JobState_Name(view->state()),
                                               ", waiting for ", view->waiting_for()));
  }
  if (view->run_id() != run_id || view->connected_ranks() != view->world_size()) {
    return absl::UnavailableError(absl::StrCat("the daemon has ", view->connected_ranks(),
                                               " ranks of ", view->run_id(), ", not all of ",
                                               run_id));
  }
  if (static_cast<int64_t>(view->version()) != running.version ||
      absl::BytesToHexString(view->digest()) != running.digest.Hex()) {
    return absl::InternalError(absl::StrCat("the daemon is IDLE with version ", view->version(),
                                            ", the ranks run ", running.version));
  }
  const auto stored = disk.jobs.find(job);
  if (stored == disk.jobs.end() || !stored->second.placement ||
      stored->second.version != running.version ||
      DigestOf(*stored->second.placement) != running.digest) {
    return absl::InternalError("the store has another placement");
  }
  return absl::OkStatus();
}

bool SimDaemon::IsQuarantined(const std::string& job) const {
  if (!serves()) return false;
  const absl::StatusOr<v1::JobStatus> view = core_->Job(job, Clock());
  return view.ok() && view->state() == v1::JOB_STATE_QUARANTINE;
}

}  // namespace eplb::simulation
