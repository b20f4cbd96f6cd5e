#include "tests/server/core/core_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/thread_cpu_time.h"
#include "placement/policies/registry.h"
#include "tests/server/core/given_answer.h"

namespace eplb::core {
namespace {

Topology TestTopology() { return Topology::Make(TestShape()).value(); }

// Measures how long the lock is held, and reads the core whenever it is released, as other threads
// do.
class MeasuredLock final : public CoreLock {
 public:
  MeasuredLock(const Core& core, absl::Time now) : core_(core), now_(now) { Take(); }
  void Take() override {
    EXPECT_FALSE(std::exchange(held_, true));
    since_ = ThreadCpuTime();
  }
  void Release() override {
    longest_ = std::max(longest_, ThreadCpuTime() - since_);
    EXPECT_TRUE(std::exchange(held_, false)) << "one ReadersIn within another";
    for (const v1::JobStatus& job : core_.Jobs(now_)) {
      EXPECT_TRUE(core_.Plans(job.job(), 1).ok());
      (void)core_.PlacementInForce(job.job());
      (void)core_.NewestWindow(job.job());
    }
  }
  absl::Duration longest() const { return longest_; }

 private:
  const Core& core_;
  const absl::Time now_;
  bool held_ = false;
  absl::Duration since_;
  absl::Duration longest_;
};

}  // namespace

TopologyOptions TestShape() {
  return {.num_layers = 4, .num_experts = 6, .num_slots = 6, .num_gpus = 3};
}

Config TestConfig() {
  Config config;
  config.settings.policy = kIncrementalPolicyName;
  config.settings.every_steps = 20;
  config.settings.min_gain = 0.05;
  config.settings.layers_per_chunk = 2;
  config.server_version = "test";
  return config;
}

wire::Hello TestHello(int32_t rank, const TopologyOptions& shape) {
  wire::Hello hello;
  hello.job = kJob;
  hello.run_id = "run-1";
  hello.nonce = 100 + static_cast<uint64_t>(rank);
  hello.rank = rank;
  hello.world_size = shape.num_gpus;
  hello.gpu = rank;
  hello.shape = shape;
  hello.running_digest = DigestOf(Placement::Static(Topology::Make(shape).value()));
  hello.vote_every = 2;
  hello.report_every = 10;
  hello.weight_bytes = 8;
  hello.state_bytes = 16;
  hello.staging_rows = 2;
  return hello;
}

wire::LoadReport TestReport(int64_t first_step, int64_t last_step) {
  wire::LoadReport report;
  report.first_step = first_step;
  report.last_step = last_step;
  report.counts = LoadMatrix::Constant(4, 6, 10);
  report.counts.leftCols(2) = 100;
  return report;
}

wire::LoadReport TestSplitReport(int64_t tokens, int64_t peak) {
  wire::LoadReport report = TestReport(0, 9);
  report.split_tokens.assign(4, tokens);
  report.split_peaks.assign(4, peak);
  report.split_peaks_static.assign(4, peak + 10);
  report.split_peaks_without_eplb.assign(4, peak + 20);
  return report;
}

Placement Exchanged(const std::vector<int32_t>& layers) {
  IndexMatrix slots = Placement::Static(TestTopology()).physical_to_logical_map();
  for (const int32_t layer : layers) std::swap(slots(layer, 1), slots(layer, 2));
  return Placement::FromSlots(TestTopology(), slots).value();
}

CoreHarness::CoreHarness(Config config) : config_(std::move(config)) { Restart(); }

void CoreHarness::Restart() {
  std::vector<StoredJob> jobs;
  for (const auto& [name, job] : stored_) {
    jobs.push_back(job);
    for (const auto& [number, plan] : plans_) jobs.back().plans.push_back(plan);
    if (name != kJob) continue;
    jobs.back().typical_loads = typical_loads_;
    for (const auto& [version, placement] : history_) {
      jobs.back().history.push_back({version, DigestOf(placement)});
    }
  }
  core_ = std::make_unique<Core>(config_, stored_term_, std::move(jobs), now_);
  EXPECT_GT(core_->term(), stored_term_);
  stored_term_ = core_->term();
  mail_.clear();
  pending_solve_.reset();
}

void CoreHarness::LoseStore(std::optional<absl::Time> moved_aside) {
  config_.store_moved_aside = moved_aside;
  stored_.clear();
  plans_.clear();
  history_.clear();
  stored_term_ = 0;
  Restart();
}

void CoreHarness::RestoreStore(std::map<std::string, StoredJob> copy, int64_t term) {
  stored_ = std::move(copy);
  plans_.clear();
  const auto job = stored_.find(kJob);
  std::erase_if(history_, [&](const auto& entry) {
    return job == stored_.end() || entry.first > job->second.version;
  });
  stored_term_ = term;
  Restart();
}

void CoreHarness::Say(SessionId session, wire::UpMessage message) {
  if (closed_.count(session) > 0) return;
  if (const auto* hello = std::get_if<wire::Hello>(&message)) {
    highest_term_said_ = std::max(highest_term_said_, hello->highest_term);
  }
  Handle(SessionMessage{session, std::move(message)});
}

SessionId CoreHarness::Join(const wire::Hello& hello) {
  const SessionId session = Open();
  Say(session, hello);
  return session;
}

void CoreHarness::Disconnect(SessionId session) {
  mail_.erase(session);
  Handle(SessionClosed{session, "connection reset"});
}

void CoreHarness::Advance(absl::Duration duration) {
  now_ += duration;
  Handle(Tick{});
}

void CoreHarness::AdvanceSeconds(int num) {
  for (int second = 0; second < num; ++second) Advance(absl::Seconds(1));
}

void CoreHarness::Handle(const Event& event) {
  MeasuredLock lock(*core_, now_);
  const Decision decision = core_->Handle(event, now_, &lock);
  lock.Release();
  absl::Duration& longest = longest_holds_[event.index()];
  longest = std::max(longest, lock.longest());
  Execute(decision);
  if (solve_started_ && !solver_is_busy) Handle(*std::exchange(solve_started_, std::nullopt));
  for (const SessionId session : std::exchange(just_closed_, {})) {
    Handle(SessionClosed{session, "closed by the daemon"});
  }
}

bool CoreHarness::AnswerSolve(absl::StatusOr<Placement> placement) {
  if (!pending_solve_) return false;
  const Solve solve = *std::move(pending_solve_);
  pending_solve_.reset();
  Solved solved = Answering(solve, std::move(placement));
  solved.seconds = 0.001;
  Handle(std::move(solved));
  return true;
}

void CoreHarness::Execute(const Decision& decision) {
  for (const Effect& effect : decision.effects) {
    if (!Execute(effect)) return;
  }
}

// False when it failed: the rest of the decision is dropped.
bool CoreHarness::Execute(const Effect& effect) {
  if (const auto* send = std::get_if<Send>(&effect)) {
    CheckSend(*send);
    if (closed_.count(send->session) == 0) mail_[send->session].push_back(send->message);
  } else if (const auto* close = std::get_if<Close>(&effect)) {
    closed_[close->session] = close->status;
    just_closed_.push_back(close->session);
  } else if (const auto* store = std::get_if<Store>(&effect)) {
    if (!store_works) {
      Handle(StoreFailed{store->job.job, absl::UnavailableError("disk full")});
      return false;
    }
    Keep(store->job);
  } else if (const auto* store_term = std::get_if<StoreTerm>(&effect)) {
    if (!term_store_works) {
      Handle(StoreFailed{"", absl::UnavailableError("disk full")});
      return false;
    }
    // The same again after a Store behind it failed: the core cannot know which of both was done.
    EXPECT_GE(store_term->term, stored_term_);
    stored_term_ = store_term->term;
  } else if (const auto* cancel = std::get_if<CancelSolve>(&effect)) {
    cancelled_solves_.emplace_back(cancel->job, cancel->solve_id);
    if (solve_started_ && solve_started_->solve_id == cancel->solve_id) solve_started_.reset();
  } else if (const auto* solve = std::get_if<Solve>(&effect)) {
    solve_started_ = SolveStarted{solve->job, solve->solve_id};
    pending_solve_ = *solve;
    ++num_solves_;
  } else if (const auto* plan = std::get_if<StorePlan>(&effect)) {
    plans_.insert_or_assign(static_cast<int64_t>(plan->plan.plan()), plan->plan);
  } else if (const auto* loads = std::get_if<StoreTypicalLoads>(&effect)) {
    typical_loads_ = loads->loads;
    ++typical_load_writes_;
  } else if (const auto* forget = std::get_if<Forget>(&effect)) {
    if (forget->required && !store_works) {
      Handle(StoreFailed{forget->job, absl::UnavailableError("disk full")});
      return false;
    }
    stored_.erase(forget->job);
  } else if (const auto* kept = std::get_if<KeepWindow>(&effect)) {
    past_windows_.push_back(kept->window);
  } else if (const auto* reply = std::get_if<Reply>(&effect)) {
    EXPECT_TRUE(replies_.emplace(reply->ticket, reply->outcome).second) << "a second answer";
  } else {
    records_.push_back(std::get<Record>(effect));
  }
  return true;
}

void CoreHarness::Keep(const StoredJob& job) {
  ++num_job_writes_;
  StoredJob kept = job;
  if (const auto old = stored_.find(job.job); old != stored_.end()) {
    kept.requests = old->second.requests;
  }
  if (kept.done) kept.requests.push_back(*std::exchange(kept.done, std::nullopt));
  stored_.insert_or_assign(job.job, std::move(kept));
  if (job.job == kJob && job.placement) history_.emplace(job.version, *job.placement);
}

absl::StatusOr<ChangeOutcome> CoreHarness::Ask(Verb verb, std::optional<int64_t> expect_version,
                                               std::string request_id) {
  return AskFor({.request_id = std::move(request_id),
                 .expect_version = expect_version,
                 .verb = std::move(verb)});
}

absl::StatusOr<ChangeOutcome> CoreHarness::Preview(Verb verb) {
  return AskFor({.verb = std::move(verb), .preview = true});
}

absl::StatusOr<ChangeOutcome> CoreHarness::AskFor(Change change) {
  const int64_t ticket = ++last_ticket_;
  if (auto* rollback = std::get_if<Rollback>(&change.verb)) {
    const auto version = core_->RollbackTarget(kJob, rollback->to_version);
    const auto found = history_.find(version.value_or(-1));
    if (found != history_.end()) rollback->placement = found->second;
  }
  const absl::StatusOr<v1::JobStatus> view = core_->Job(kJob, now_);
  if (!change.expect_version) change.expect_version = view.ok() ? view->version() : 0;
  if (change.request_id.empty()) change.request_id = absl::StrCat("request-", ticket);
  change.ticket = ticket;
  change.job = kJob;
  change.comment = "why not";
  change.actor = "ann";
  Handle(std::move(change));
  const auto reply = replies_.find(ticket);
  if (reply == replies_.end()) return absl::InternalError("the change was not answered");
  return reply->second;
}

void CoreHarness::CheckSend(const Send& send) {
  if (const auto* welcome = std::get_if<wire::Welcome>(&send.message)) {
    const auto stored = stored_.find(kJob);
    const int64_t remembered = stored == stored_.end() ? 0 : stored->second.memory.term;
    EXPECT_LE(welcome->term, std::max(stored_term_, std::max(highest_term_said_, remembered) + 1))
        << "I6: the term was sent before it was stored, and no rank has seen the one below it";
  }
  if (const auto* propose = std::get_if<wire::Propose>(&send.message)) {
    const auto found = stored_.find(kJob);
    ASSERT_NE(found, stored_.end()) << "I6: proposed before anything was stored";
    EXPECT_GT(found->second.next_version, propose->version) << "I6: proposed before stored";
    EXPECT_GE(propose->version, highest_proposed_) << "I2: a version went back";
    highest_proposed_ = propose->version;
  }
}

std::deque<wire::DownMessage> CoreHarness::Take(SessionId session) {
  return std::exchange(mail_[session], {});
}

bool CoreHarness::HasMail(SessionId session) const {
  const auto found = mail_.find(session);
  return found != mail_.end() && !found->second.empty();
}

std::optional<wire::DownMessage> CoreHarness::TakeOne(SessionId session) {
  if (!HasMail(session)) return std::nullopt;
  wire::DownMessage message = std::move(mail_[session].front());
  mail_[session].pop_front();
  return message;
}

std::optional<absl::Status> CoreHarness::ClosedWith(SessionId session) const {
  const auto found = closed_.find(session);
  if (found == closed_.end()) return std::nullopt;
  return found->second;
}

std::string CoreHarness::LastReason(const std::string& name) const {
  const auto found =
      std::find_if(records_.rbegin(), records_.rend(),
                   [&name](const Record& record) { return record.event.name() == name; });
  return found == records_.rend() ? "" : found->event.reason();
}

int64_t CoreHarness::CountEvents(const std::string& name) const {
  return std::count_if(records_.begin(), records_.end(),
                       [&name](const Record& record) { return record.event.name() == name; });
}

FakeRank::FakeRank(int32_t rank, const TopologyOptions& shape)
    : identity(TestHello(rank, shape)),
      placement(Placement::Static(Topology::Make(shape).value())) {}

wire::Hello FakeRank::Hello() const {
  wire::Hello hello = identity;
  hello.running_version = version;
  hello.running_digest = DigestOf(placement);
  hello.prepared_version = ready ? ready->version : 0;
  return hello;
}

void FakeRank::Relaunch(const std::string& run) {
  identity.run_id = run;
  identity.nonce += 1000;
  identity.run_number = 0;
  identity.memory = {};
  identity.take_over = false;
  identity.step = 0;
  ready.reset();
  session = 0;
  outbox.clear();
}

void FakeRank::Receive(const wire::DownMessage& message) {
  std::visit([this](const auto& one) { On(one); }, message);
}

void FakeRank::Apply(int64_t step) {
  placement = ready->placement;
  version = ready->version;
  ready.reset();
  identity.step = step;
  outbox.emplace_back(wire::Applied{version, DigestOf(placement), step, 100, 0.25});
}

void FakeRank::Drop(wire::FailedCode code, const std::string& detail) {
  outbox.emplace_back(wire::Failed{ready->version, code, detail, identity.step});
  ready.reset();
}

void FakeRank::On(const wire::Propose& propose) {
  proposals.push_back(propose);
  const auto refuse = [this, &propose](wire::NackCode code, const std::string& detail) {
    outbox.emplace_back(wire::Nack{propose.version, code, detail});
  };
  if (propose.term < identity.highest_term) return refuse(wire::NackCode::kStaleTerm, "old term");
  if (propose.version <= identity.highest_version) {
    return refuse(wire::NackCode::kStaleVersion, "old version");
  }
  identity.highest_version = propose.version;
  if (ready || computing) return refuse(wire::NackCode::kBusy, "another proposal is PREPARED");
  if (propose.base_version != version || propose.base_digest != DigestOf(placement)) {
    return refuse(wire::NackCode::kWrongBase, absl::StrCat("running ", version));
  }
  const Placement next = placement.WithLayers(propose.layers).value();
  if (DigestOf(next) != propose.digest) {
    return refuse(wire::NackCode::kWrongDigest, "another digest");
  }
  computing = Candidate{propose.version, propose.digest, next};
  if (!slow) FinishComputing();
}

void FakeRank::FinishComputing() {
  if (!computing) return;
  ready = std::exchange(computing, std::nullopt);
  outbox.emplace_back(wire::Prepared{ready->version, ready->digest, Sha256("plan")});
}

void FakeRank::On(const wire::Cancel& cancel) {
  if (computing && computing->version == cancel.version) computing.reset();
  if (ready && ready->version == cancel.version) {
    Drop(wire::FailedCode::kCancelled, cancel.reason);
  } else if (version == cancel.version) {
    outbox.emplace_back(wire::Applied{version, DigestOf(placement), identity.step, 0, 0});
  } else {
    outbox.emplace_back(
        wire::Failed{cancel.version, wire::FailedCode::kSuperseded, "not held", identity.step});
  }
}

void FakeRank::On(const wire::NeedPlacement& need) {
  if (need.digest != DigestOf(placement)) return;
  outbox.emplace_back(wire::PlacementBody{version, need.digest, placement});
}

void FakeRank::On(const wire::Welcome& welcome) {
  identity.highest_term = std::max(identity.highest_term, welcome.term);
}

void FakeRank::On(const wire::Keep& keep) {
  identity.run_number = keep.run_number;
  identity.memory = keep.memory;
}

TestJob::TestJob(Config config, const TopologyOptions& shape) : daemon(std::move(config)) {
  for (int32_t rank = 0; rank < shape.num_gpus; ++rank) ranks.emplace_back(rank, shape);
}

void TestJob::Connect(int32_t rank) {
  ranks[rank].session = daemon.Open();
  ranks[rank].outbox.clear();  // the content of the broken stream is lost
  daemon.Say(ranks[rank].session, ranks[rank].Hello());
}

void TestJob::ConnectAll() {
  for (int32_t rank = 0; rank < std::ssize(ranks); ++rank) Connect(rank);
  Deliver();
}

void TestJob::Disconnect(int32_t rank) {
  daemon.Disconnect(ranks[rank].session);
  ranks[rank].session = 0;
  ranks[rank].outbox.clear();
}

void TestJob::DisconnectAll() {
  for (int32_t rank = 0; rank < std::ssize(ranks); ++rank) Disconnect(rank);
}

void TestJob::SetRunning(const Placement& placement, int64_t version) {
  for (FakeRank& rank : ranks) {
    rank.placement = placement;
    rank.version = version;
    rank.identity.highest_version = version;
  }
}

void TestJob::Relaunch(const std::string& run) {
  for (FakeRank& rank : ranks) rank.Relaunch(run);
}

void TestJob::SayAll(const wire::UpMessage& message) {
  for (const FakeRank& rank : ranks) daemon.Say(rank.session, message);
}

void TestJob::Fail(int32_t rank, const std::string& why) {
  daemon.Say(ranks[rank].session, wire::Goodbye{why, {}, true});
}

void TestJob::Train(const std::vector<int32_t>& trained, int64_t step, int windows) {
  for (int window = 0; window < windows; ++window, step += 10) {
    daemon.Advance(absl::Seconds(1));
    for (const int32_t rank : trained) {
      daemon.Say(ranks[rank].session, TestReport(step, step + 9));
    }
    daemon.AnswerSolve(Exchanged({}));
  }
}

void TestJob::DeliverDown(int32_t rank) {
  FakeRank& one = ranks[rank];
  if (one.session == 0 || one.silent) return;
  for (const wire::DownMessage& message : daemon.Take(one.session)) one.Receive(message);
}

void TestJob::DeliverUp(int32_t rank) {
  FakeRank& one = ranks[rank];
  if (one.session == 0 || one.silent) return;
  for (const wire::UpMessage& message : std::exchange(one.outbox, {})) {
    daemon.Say(one.session, message);
  }
}

void TestJob::Deliver() {
  constexpr int kMaxTurns = 32;
  for (int turn = 0; turn < kMaxTurns; ++turn) {
    for (int32_t rank = 0; rank < std::ssize(ranks); ++rank) DeliverDown(rank);
    for (int32_t rank = 0; rank < std::ssize(ranks); ++rank) DeliverUp(rank);
  }
}

void TestJob::Report(int64_t first_step, int64_t last_step) {
  for (int32_t rank = 0; rank < std::ssize(ranks); ++rank) ReportOf(rank, first_step, last_step);
}

void TestJob::ReportOf(int32_t index, int64_t first_step, int64_t last_step) {
  FakeRank& rank = ranks[index];
  rank.identity.step = last_step;
  wire::LoadReport report = TestReport(first_step, last_step);
  report.version = rank.version;
  daemon.Say(rank.session, std::move(report));
}

void TestJob::Propose(const Placement& candidate) {
  ConnectAll();
  Report(0, 9);
  ASSERT_TRUE(daemon.AnswerSolve(candidate));
  ASSERT_EQ(daemon.state(), "PREPARING");
}

bool TestJob::Vote(int64_t step, bool transfer_works) {
  const bool unanimous = std::all_of(ranks.begin(), ranks.end(), [this](const FakeRank& rank) {
    return rank.ready && ranks[0].ready && rank.ready->version == ranks[0].ready->version;
  });
  for (FakeRank& rank : ranks) {
    rank.identity.step = step;
    if (!unanimous) continue;
    if (transfer_works) {
      rank.Apply(step);
    } else {
      rank.Drop(wire::FailedCode::kTransfer, "checksum of layer 0 differs");
    }
  }
  return unanimous;
}

void TestJob::CommitAll(int64_t step) {
  Deliver();
  for (; Vote(step); step += 2) Deliver();
}

std::vector<wire::DownMessage> TestJob::SentTo(int32_t rank) {
  const auto messages = daemon.Take(ranks[rank].session);
  return {messages.begin(), messages.end()};
}

}  // namespace eplb::core
