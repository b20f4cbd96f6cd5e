// The daemon's core under any sequence of events. Well-formed ranks connect, answer, vote and
// leave; others send messages that no rank would send. There are several runs, memories that ranks
// carry, a store that fails or is lost, restarts, and a clock that jumps ahead. The harness checks
// I2 and I6 on every effect.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "proto/wire/convert.h"
#include "proto/wire/messages.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

constexpr int kMaxOperations = 200;
constexpr int kViewEvery = 8;  // a view evaluates the newest window, which is most of the time

using fuzz::Input;

// Any order of the experts over the slots of each layer.
Placement Shuffled(Input& input) {
  IndexMatrix slots = Exchanged({}).physical_to_logical_map();
  for (Eigen::Index layer = 0; layer < slots.rows(); ++layer) {
    const int32_t first = input.Below(6);
    std::swap(slots(layer, first), slots(layer, input.Below(6)));
  }
  return Placement::FromSlots(Exchanged({}).topology(), slots).value();
}

class World {
 public:
  explicit World(Input input) : input_(input) {}

  void Run() {
    for (int i = 0; i < kMaxOperations && !input_.empty(); ++i) {
      Operate();
      CheckRun();
      if (i % kViewEvery != 0) continue;
      for (const v1::JobStatus& view : job_.daemon.core().Jobs(job_.daemon.now())) Check(view);
    }
  }

 private:
  FakeRank& AnyRank() { return job_.ranks[static_cast<size_t>(input_.Below(3))]; }

  void Operate() {
    switch (input_.Below(18)) {
      case 0:
        return job_.Connect(input_.Below(3));
      case 1:
        return job_.ConnectAll();
      case 2:
        return job_.Deliver();
      case 3:
        return job_.DeliverDown(input_.Below(3));
      case 4:
        return job_.DeliverUp(input_.Below(3));
      case 5:
        return Report();
      case 6:
        return Solve();
      case 7:
        step_ += input_.Below(16);
        (void)job_.Vote(step_, input_.Below(2) == 0);
        return;
      case 8:
        return job_.daemon.Advance(absl::Milliseconds(1 << input_.Below(20)));
      case 9:
        return job_.Disconnect(input_.Below(3));
      case 10:
        return Restart();
      case 11:
        job_.daemon.store_works = input_.Below(2) == 0;
        job_.daemon.term_store_works = input_.Below(2) == 0;
        return;
      case 12:
        return Change(AnyRank());
      case 13:
        return Reserve();
      case 14:
        return LoseStore();
      case 15:
        return ChangeRun(AnyRank());
      case 16: {  // question of a rank of another daemon
        const std::string run = "run-" + std::to_string(input_.Below(4));
        const absl::StatusOr<LeaderView> leader = job_.daemon.core().Leader(kJob, run);
        if (!leader.ok()) fuzz::RequireOneLine(leader.status());
        return;
      }
      default:
        return SayAnything();
    }
  }

  // Reports the rank's own step or any other.
  void Report() {
    FakeRank& rank = AnyRank();
    const int64_t first = 10 * int64_t{input_.Below(32)};
    rank.identity.step = first + input_.Below(12);
    wire::LoadReport report = TestReport(first, std::max(first, rank.identity.step));
    const int bit = input_.Below(63);
    report.counts(input_.Below(4), input_.Below(6)) = int64_t{1} << bit;
    report.version = rank.version;
    if (bit % 4 == 3) {  // some in order, some not
      report.earlier = {{.last_step = first + bit % 12,
                         .version = rank.version - 1 + bit % 3,
                         .counts = report.counts / (1 + bit % 5)}};
    }
    report.parts_unknown = bit % 8 == 5;
    if (rank.session != 0) job_.daemon.Say(rank.session, report);
  }

  void Solve() {
    if (input_.Below(8) == 0) {
      (void)job_.daemon.AnswerSolve(absl::InternalError("no placement"));
    } else {
      (void)job_.daemon.AnswerSolve(Shuffled(input_));
    }
  }

  void Reserve() {
    const int64_t ticket = ++last_ticket_;
    job_.daemon.Handle(ReserveVersion{.ticket = ticket, .job = kJob});
    const absl::StatusOr<ChangeOutcome>& reply = job_.daemon.replies().at(ticket);
    if (!reply.ok()) return fuzz::RequireOneLine(reply.status());
    fuzz::Require(reply->version > reserved_, "a version was reserved twice");
    reserved_ = reply->version;
  }

  void LoseStore() {
    const bool moved_aside = input_.Below(2) == 0;
    job_.daemon.LoseStore(moved_aside ? std::optional(job_.daemon.now()) : std::nullopt);
    ForgetSessions();
    reserved_ = 0;
    ForgetRuns();
  }

  // Which run a rank is of, and what it carries for it.
  void ChangeRun(FakeRank& rank) {
    wire::Hello& hello = rank.identity;
    switch (input_.Below(4)) {
      case 0:
        hello.run_number = int64_t{1} << input_.Below(63);
        return;
      case 1:
        hello.take_over = !hello.take_over;
        return;
      case 2: {
        absl::StatusOr<wire::JobMemory> memory = wire::MemoryFromBytes(std::string(input_.Bytes()));
        if (memory.ok()) hello.memory.value = *std::move(memory);
        return;
      }
      default:
        if (!hello.memory.value) return;
        hello.memory.value->serial += input_.Below(3);
        hello.memory.value->paused = input_.Below(2) == 0;
        hello.memory.value->quarantine = input_.Below(2) == 0 ? "ranks differ" : "";
        hello.memory.value->gone.push_back({"run-" + std::to_string(input_.Below(4)), 1});
    }
  }

  // Sessions die with the daemon; the ranks live on.
  void Restart() {
    job_.daemon.Restart();
    ForgetSessions();
    // The ranks bring back the numbers of a job that is in no store.
    if (job_.daemon.stored().contains(kJob)) return;
    reserved_ = 0;
    ForgetRuns();
  }

  void ForgetSessions() {
    for (FakeRank& rank : job_.ranks) {
      rank.session = 0;
      rank.outbox.clear();
    }
  }

  // State that a rank reports the next time.
  void Change(FakeRank& rank) {
    switch (input_.Below(6)) {
      case 0:
        rank.identity.run_id = "run-" + std::to_string(input_.Below(4));
        return;
      case 1:
        rank.identity.nonce = input_.Byte();
        return;
      case 2:
        rank.placement = Shuffled(input_);
        return;
      case 3:
        rank.version = input_.Byte();
        return;
      case 4:
        rank.identity.highest_term = int64_t{1} << input_.Below(63);
        return;
      default:
        rank.identity.highest_version = int64_t{1} << input_.Below(63);
    }
  }

  void SayAnything() {
    const core::SessionId session = AnyRank().session;
    const std::string_view bytes = input_.Bytes();
    v1::Up message;
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    absl::StatusOr<wire::UpMessage> value = wire::FromProto(message);
    if (value.ok() && session != 0) job_.daemon.Say(session, *std::move(value));
  }

  // A run that the store knows to be gone never becomes the job's own again.
  void CheckRun() {
    const absl::StatusOr<v1::JobStatus> view = job_.daemon.core().Job(kJob, job_.daemon.now());
    if (!view.ok()) {  // it is forgotten
      reserved_ = 0;
      return ForgetRuns();
    }
    const std::string& owner = view->run_id();
    fuzz::Require(owner == owner_ || !gone_.contains(owner), "a run that was gone owns the job");
    owner_ = owner;
    const auto stored = job_.daemon.stored().find(kJob);
    if (stored == job_.daemon.stored().end()) return;
    for (const wire::EndedRun& one : stored->second.memory.gone) gone_.insert(one.run_id);
  }

  void ForgetRuns() {
    owner_.clear();
    gone_.clear();
  }

  static void Check(const v1::JobStatus& view) {
    if (view.has_balancedness()) {
      fuzz::Require(view.balancedness() > 0 && view.balancedness() <= 1, "balancedness");
    }
    fuzz::Require(view.has_balancedness() == view.not_measured_reason().empty(),
                  "a figure without a sample, or none without its cause");
    fuzz::Require(view.connected_ranks() <= view.world_size(), "more ranks than the job has");
    fuzz::Require(view.state_seconds() >= 0, "a state that began in the future");
  }

  Input input_;
  TestJob job_;
  int64_t step_ = 0;
  int64_t last_ticket_ = 1 << 20;  // the harness has tickets of its own
  int64_t reserved_ = 0;           // the newest version
  std::string owner_;              // the run that the view showed last
  std::set<std::string> gone_;     // in what was stored
};

}  // namespace
}  // namespace eplb::core

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  testing::FLAGS_gtest_break_on_failure = true;  // an expectation of the harness ends the process
  eplb::core::World(eplb::core::Input(eplb::fuzz::AsText(data, size))).Run();
  return 0;
}
