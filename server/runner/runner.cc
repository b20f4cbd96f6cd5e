#include "server/runner/runner.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "base/thread_cpu_time.h"
#include "proto/wire/message_json.h"
#include "server/process/log.h"
#include "server/store/opening.h"

namespace eplb {
namespace {

constexpr int kMaxStoreFailures =
    4;  // failures of one event, each answered by a decision that stores again
constexpr absl::Duration kProbePeriod = absl::Seconds(1);
constexpr absl::Duration kBehind = absl::Seconds(10);  // events wait without a break for so long
constexpr absl::Duration kPublishPeriod =
    absl::Seconds(1);  // interval of views for readers that cannot wait
constexpr absl::Duration kSavePeriod =
    absl::Seconds(10);  // interval of saved windows, whatever waits
constexpr absl::Duration kDropLogPeriod = absl::Seconds(10);
constexpr absl::Duration kNewsOfOpening = absl::Minutes(10);

// Holds the core's mutex while it lives, and measures the processor time from Take to Release.
class HeldLock final : public core::CoreLock {
 public:
  explicit HeldLock(std::timed_mutex& mutex) : mutex_(mutex) { Take(); }
  ~HeldLock() override { mutex_.unlock(); }
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;

  void Release() override {
    longest_ = longest();
    mutex_.unlock();
  }
  void Take() override {
    mutex_.lock();
    since_ = ThreadCpuTime();
  }
  // Until now.
  absl::Duration longest() const { return std::max(longest_, ThreadCpuTime() - since_); }

 private:
  std::timed_mutex& mutex_;
  absl::Duration since_;
  absl::Duration longest_;
};

// Returns the lock, or after Runner::kPatience an empty one. ThreadSanitizer of GCC 12 does not
// know the call by which a mutex is waited for until a steady time, so its builds wait until a time
// of day.
std::unique_lock<std::timed_mutex> HoldWithPatience(std::timed_mutex& mutex) {
#ifdef __SANITIZE_THREAD__
  return {mutex, std::chrono::system_clock::now() + absl::ToChronoMicroseconds(Runner::kPatience)};
#else
  return {mutex, absl::ToChronoMicroseconds(Runner::kPatience)};
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<Runner>> Runner::Start(RunnerOptions options,
                                                      std::unique_ptr<Store> store) {
  EPLB_ASSIGN_OR_RETURN(const int64_t stored_term, store->ReadTerm());
  EPLB_ASSIGN_OR_RETURN(std::vector<core::StoredJob> jobs, store->ReadJobs());
  absl::StatusOr<std::vector<StoredWindow>> windows = store->ReadWindows();
  if (!windows.ok()) {
    Log(LogLevel::kWarn, "windows_not_read", {{"reason", windows.status().ToString()}});
    windows.emplace();
  }
  std::map<std::string_view, const v1::Window*> newest;
  for (const StoredWindow& one : *windows) newest[one.job] = &one.figures;
  for (core::StoredJob& job : jobs) {
    if (const auto window = newest.find(job.job); window != newest.end()) {
      job.newest_window = *window->second;
    }
  }
  EPLB_ASSIGN_OR_RETURN(options.core.store_moved_aside, store->ReadMovedAside());
  options.core.pauses_unknown_until =
      core::UnknownPausesEnd(AgeOf(options.core.store_moved_aside), MonotonicNow());
  Log(LogLevel::kDebug, "store_read",
      {{"stored_term", stored_term}, {"jobs", static_cast<int64_t>(jobs.size())}});
  auto runner = std::unique_ptr<Runner>(
      new Runner(std::move(options), std::move(store), stored_term, std::move(jobs)));
  runner->history_.Restore(*std::move(windows));
  runner->executor_.ProbeStore(runner->term());
  if (!runner->executor_.store_works()) {
    const absl::Status status = Unavailable("the store takes no writes, the term cannot be stored");
    Log(LogLevel::kError, "store_failed", {{"reason", std::string(status.message())}});
    runner->Handle(core::StoreFailed{.job = "", .status = status});
  }
  runner->thread_ = std::thread([raw = runner.get()] { raw->Loop(); });
  return runner;
}

Runner::Runner(RunnerOptions options, std::unique_ptr<Store> store, int64_t stored_term,
               std::vector<core::StoredJob> jobs)
    : elected_(options.core.elected),
      opening_note_(std::move(options.opening_note)),
      started_(MonotonicNow()),
      room_warning_(std::move(options.room_warning)),
      max_sessions_(options.sessions.max_sessions),
      store_(std::move(store)),
      sessions_(std::move(options.sessions)),
      queue_(options.queue, [this](core::SessionId session) { sessions_.ReadOn(session); }),
      changes_(static_cast<size_t>(options.max_plan_questions)),
      core_(std::move(options.core), stored_term, std::move(jobs), MonotonicNow()),
      published_({.readiness = core_.Readiness(), .term = core_.term()}),
      turned_nanos_(absl::ToUnixNanos(MonotonicNow())),
      caught_up_(MonotonicNow()),
      probed_(MonotonicNow()),
      drops_logged_(MonotonicNow()),
      windows_saved_(MonotonicNow()),
      views_published_(absl::InfinitePast()),
      history_(options.history),
      solver_(
          {.started = [this](core::SolveStarted started) { (void)queue_.Push(std::move(started)); },
           .done =
               [this](core::Solved solved) {
                 solve_seconds_.Observe(solved.seconds);
                 (void)queue_.Push(std::move(solved));
               }},
          options.solver_threads),
      executor_(
          {.store = store_.get(),
           .sessions = &sessions_,
           .solve = [this](core::Solve request) { solver_.Post(std::move(request)); },
           .cancel_solve = [this](const core::CancelSolve& which) { solver_.Cancel(which); },
           .reply =
               [this](const core::Reply& reply) { changes_.Answer(reply.ticket, reply.outcome); },
           .history = &history_}) {
  PublishViews();
}

Runner::~Runner() { Stop(); }

void Runner::Stop() {
  stopping_ = true;
  queue_.Stop();
  if (thread_.joinable()) thread_.join();
  changes_.FailAll(Unavailable("the daemon is shutting down; retry after its restart"));
  while (executor_.SaveWindows()) continue;
  store_->Close();
}

absl::Status Runner::Ask(core::Change change, ChangeDesk::Done done) {
  return Post(std::move(change), ChangeDesk::Who::kOperator, std::move(done));
}

absl::Status Runner::ReserveVersion(std::string job, ChangeDesk::Done done) {
  return Post(core::ReserveVersion{.job = std::move(job)}, ChangeDesk::Who::kRank, std::move(done));
}

absl::Status Runner::AskPlan(core::PlanQuestion question, ChangeDesk::Done done) {
  return Post(std::move(question), ChangeDesk::Who::kEngine, std::move(done));
}

absl::Status Runner::SettlePlan(core::PlanSettled settled, ChangeDesk::Done done) {
  return Post(std::move(settled), ChangeDesk::Who::kEngine, std::move(done));
}

template <class Question>
absl::Status Runner::Post(Question question, ChangeDesk::Who who, ChangeDesk::Done done) {
  EPLB_ASSIGN_OR_RETURN(const int64_t ticket, changes_.Take(who, std::move(done), MonotonicNow()));
  question.ticket = ticket;
  if (queue_.Push(std::move(question)) == Admission::kQueued) return absl::OkStatus();
  if (!changes_.Drop(ticket)) return absl::OkStatus();  // it was answered meanwhile
  return ResourceExhausted("the daemon's event queue is full, retry later");
}

// Nothing changes the core between this and its decision, so the version stays the right one.
void Runner::LookUp(core::Change& change) const {
  auto* rollback = std::get_if<core::Rollback>(&change.verb);
  if (rollback == nullptr) return;
  absl::StatusOr<int64_t> version;
  {
    const std::lock_guard lock(core_mutex_);
    version = core_.RollbackTarget(change.job, rollback->to_version);
  }
  if (version.ok()) rollback->placement = store_->ReadPlacement(change.job, *version);
}

void Runner::Loop() {
  absl::Time next_tick = MonotonicNow() + kTick;
  while (!stopping_) {
    const absl::Duration wait = next_tick - MonotonicNow();
    std::optional<core::Event> event = queue_.Pop(std::max(wait, absl::ZeroDuration()));
    if (stopping_) return;
    if (event) Handle(*std::move(event));
    const absl::Time now = MonotonicNow();
    turned_nanos_ = absl::ToUnixNanos(now);
    if (queue_.size() == 0) caught_up_ = now;
    if (now < next_tick) continue;
    Tick();
    next_tick = now + kTick;
  }
}

void Runner::Tick() {
  Handle(core::Tick{.dropped_reports = dropped_reports(),
                    .behind = MonotonicNow() - caught_up_ >= kBehind,
                    .limited = queue_.TakeLimited()});
  const absl::Time now = MonotonicNow();
  if (now >= views_published_ + kPublishPeriod) {
    PublishViews();
    views_published_ = now;
  }
  if (now >= probed_ + kProbePeriod) {
    probed_ = now;
    (void)free_memory_.Note(Counters().window_bytes);
    executor_.CheckStore();
    if (!executor_.store_works()) executor_.ProbeStore(term());
    // While events wait they go first, for a while.
    if (queue_.size() == 0 || now >= windows_saved_ + kSavePeriod) {
      executor_.SaveWindows();
      windows_saved_ = now;
    }
  }
  const int64_t drops = dropped_reports() + limited_reports();
  if (drops > logged_drops_ && now >= drops_logged_ + kDropLogPeriod) {
    Log(LogLevel::kWarn, "reports_dropped",
        {{"since_last_line", drops - logged_drops_},
         {"of_streams_above_their_limit", limited_reports()},
         {"reason", "load reports arrive faster than they are counted"}});
    logged_drops_ = drops;
    drops_logged_ = now;
  }
}

core::Decision Runner::Decide(const core::Event& event) {
  HeldLock lock(core_mutex_);
  core::Decision decision = core_.Handle(event, MonotonicNow(), &lock);
  const std::lock_guard publish(published_mutex_);
  published_ = {
      .readiness = core_.Readiness(),
      .term = core_.term(),
      .counters = {.core = core_.counters(),
                   .window_bytes = core_.window_bytes(),
                   .longest_hold = std::max(published_.counters.longest_hold, lock.longest())}};
  return decision;
}

void Runner::Handle(core::Event event) {
  // After the core closed a stream, only its SessionClosed may reach the core. Messages of a rank
  // that left by itself, above all its Goodbye, still count.
  const auto* message = std::get_if<core::SessionMessage>(&event);
  if (message != nullptr && sessions_.WasClosed(message->session)) return;
  const auto* closed = std::get_if<core::SessionClosed>(&event);
  if (closed != nullptr) sessions_.Forget(closed->session);
  if (auto* change = std::get_if<core::Change>(&event)) LookUp(*change);
  for (int failures = 0; failures < kMaxStoreFailures; ++failures) {
    const core::Decision decision = Decide(event);
    if (!decision.reason.empty()) {
      Log(LogLevel::kDebug, "decided", {{"reason", decision.reason}});
    }
    std::optional<core::StoreFailed> failed = executor_.Execute(decision);
    if (!failed) return;
    event = *std::move(failed);
  }
  Log(LogLevel::kError, "store_failed",
      {{"reason", "an event was given up after its 4th failure"}});
}

std::vector<std::string> Runner::Warnings() const {
  std::vector<std::string> warnings;
  // From then on the jobs that it concerns say so: they are paused.
  const bool is_news = MonotonicNow() - started_ < kNewsOfOpening;
  if (is_news && !opening_note_.empty()) warnings.push_back(opening_note_);
  if (std::string store = store_->warning(); !store.empty()) warnings.push_back(std::move(store));
  const bool crowded = sessions_.count() >= max_sessions_ / 2;
  if (crowded && !room_warning_.empty()) warnings.push_back(room_warning_);
  std::string refused = sessions_.RefusedText(MonotonicNow());
  if (!refused.empty()) warnings.push_back(std::move(refused));
  return warnings;
}

int64_t Runner::term() const {
  const std::lock_guard lock(published_mutex_);
  return published_.term;
}

void Runner::PublishViews() {
  const absl::Time now = MonotonicNow();
  auto views = std::make_shared<Views>();
  {
    const std::lock_guard lock(core_mutex_);  // readers move parts of the state
    *views = {.jobs = core_.Jobs(now), .refusals = core_.Refusals(now)};
  }
  const std::lock_guard lock(published_mutex_);
  views_ = std::move(views);
}

std::shared_ptr<const Runner::Views> Runner::LastViews() const {
  const std::lock_guard lock(published_mutex_);
  return views_;
}

std::vector<v1::JobStatus> Runner::Jobs() const {
  if (const std::unique_lock lock = HoldWithPatience(core_mutex_); lock) {
    return core_.Jobs(MonotonicNow());
  }
  return LastViews()->jobs;
}

absl::StatusOr<v1::JobStatus> Runner::Job(const std::string& job) const {
  if (const std::unique_lock lock = HoldWithPatience(core_mutex_); lock) {
    return core_.Job(job, MonotonicNow());
  }
  const std::shared_ptr<const Views> views = LastViews();
  const auto found = std::ranges::find_if(
      views->jobs, [&job](const v1::JobStatus& status) { return status.job() == job; });
  if (found != views->jobs.end()) return *found;
  const std::lock_guard lock(core_mutex_);  // it may have registered since the views were made
  return core_.Job(job, MonotonicNow());
}

absl::StatusOr<wire::PlacementBody> Runner::PlacementInForce(const std::string& job) const {
  const std::lock_guard lock(core_mutex_);
  return core_.PlacementInForce(job);
}

absl::StatusOr<core::LeaderView> Runner::Leader(const std::string& job,
                                                const std::string& run_id) const {
  const std::lock_guard lock(core_mutex_);
  return core_.Leader(job, run_id);
}

std::vector<v1::Refusal> Runner::Refusals() const {
  if (const std::unique_lock lock = HoldWithPatience(core_mutex_); lock) {
    return core_.Refusals(MonotonicNow());
  }
  return LastViews()->refusals;
}

absl::StatusOr<int64_t> Runner::NextVersion(const std::string& job) const {
  const std::lock_guard lock(core_mutex_);
  return core_.NextVersion(job);
}

absl::StatusOr<wire::PlacementBody> Runner::PlacementOf(const std::string& job,
                                                        int64_t version) const {
  absl::StatusOr<wire::PlacementBody> in_force = PlacementInForce(job);
  if (in_force.ok() && in_force->version == version) return in_force;
  EPLB_ASSIGN_OR_RETURN(Placement placement, store_->ReadPlacement(job, version));
  const Digest digest = DigestOf(placement);
  return wire::PlacementBody{version, digest, std::move(placement)};
}

absl::StatusOr<std::vector<v1::Plan>> Runner::Plans(const std::string& job, int32_t limit) const {
  const std::lock_guard lock(core_mutex_);
  return core_.Plans(job, limit);
}

absl::StatusOr<v1::Plan> Runner::OnePlan(const std::string& job, int64_t plan) const {
  const std::lock_guard lock(core_mutex_);
  return core_.OnePlan(job, plan);
}

absl::StatusOr<core::WindowView> Runner::NewestWindow(const std::string& job) const {
  const std::lock_guard lock(core_mutex_);
  return core_.NewestWindow(job);
}

absl::StatusOr<std::vector<v1::JobEvent>> Runner::Events(const std::string& job, int32_t limit,
                                                         int64_t after_sequence) const {
  EPLB_ASSIGN_OR_RETURN(std::vector<v1::JobEvent> events,
                        store_->ReadEvents(job, limit, after_sequence));
  if (!events.empty() || job.empty() || Job(job).ok()) return events;
  EPLB_ASSIGN_OR_RETURN(const std::vector<v1::JobEvent> any, store_->ReadEvents(job, 1, 0));
  if (any.empty()) EPLB_RETURN_IF_ERROR(Job(job).status());
  return events;
}

absl::StatusOr<std::vector<v1::Window>> Runner::Windows(const std::string& job, int64_t after,
                                                        int32_t limit) const {
  std::vector<v1::Window> windows = history_.Figures(job, after, limit);
  if (windows.empty()) EPLB_RETURN_IF_ERROR(Job(job).status());
  return windows;
}

absl::StatusOr<WindowLoads> Runner::LoadsOf(const std::string& job,
                                            std::optional<int64_t> window) const {
  absl::StatusOr<WindowLoads> loads = history_.Loads(job, window);
  if (!loads.ok()) EPLB_RETURN_IF_ERROR(Job(job).status());
  return loads;
}

absl::StatusOr<v1::Plan> Runner::NewestSwitched(const std::string& job) const {
  EPLB_ASSIGN_OR_RETURN(const std::vector<v1::Plan> plans, Plans(job, core::kMaxPlans));
  const auto plan =
      std::ranges::find_if(plans, [](const v1::Plan& one) { return one.chunks_committed() > 0; });
  if (plan != plans.end()) return *plan;
  return NotFound("no plan of job ", job, " has moved an expert yet");
}

absl::StatusOr<Traffic> Runner::TrafficOf(const std::string& job,
                                          std::optional<int64_t> number) const {
  EPLB_ASSIGN_OR_RETURN(const v1::Plan plan, number ? OnePlan(job, *number) : NewestSwitched(job));
  if (plan.chunks_committed() == 0) {
    return NotFound("plan ", plan.plan(), " of job ", job, " moved no expert: it was ",
                    wire::EnumText(plan.result()));
  }
  EPLB_ASSIGN_OR_RETURN(const wire::PlacementBody before,
                        PlacementOf(job, static_cast<int64_t>(plan.base_version())));
  EPLB_ASSIGN_OR_RETURN(const wire::PlacementBody after,
                        PlacementOf(job, static_cast<int64_t>(plan.last_version())));
  return TrafficBetween(before.placement, after.placement, plan);
}

RunnerCounters Runner::Counters() const {
  RunnerCounters counters;
  {
    const std::lock_guard lock(published_mutex_);
    counters = published_.counters;
  }
  counters.queued_events = static_cast<int64_t>(queue_.size());
  return counters;
}

absl::Status Runner::Alive() const {
  const absl::Duration silence = MonotonicNow() - absl::FromUnixNanos(turned_nanos_);
  if (silence < kStalled) return absl::OkStatus();
  return Unavailable("the daemon's core has been blocked for ",
                     absl::FormatDuration(absl::Trunc(silence, kTick)));
}

absl::Status Runner::Readiness() const {
  EPLB_RETURN_IF_ERROR(Alive());
  if (!executor_.store_works()) {
    return Unavailable("the store does not take writes: ",
                       std::string(executor_.store_status().message()));
  }
  const std::lock_guard lock(published_mutex_);
  return published_.readiness;
}

}  // namespace eplb
