#include "server/runner/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "placement/policies/registry.h"
#include "server/store/sqlite.h"
#include "tests/server/failing_store.h"
#include "tests/server/store/folder.h"
#include "tests/server/test_stream.h"
#include "tests/support/messages.h"

namespace eplb {
namespace {

class RunnerTest : public ::testing::Test {
 protected:
  struct Rank {
    TestStream stream = {};
    core::SessionId session = 0;
  };

  void Start() {
    auto store = std::make_unique<FailingStore>();
    store_ = store.get();
    StartOn(std::move(store));
  }
  void StartOn(std::unique_ptr<Store> store) {
    RunnerOptions options;
    options.core.settings.policy = kIncrementalPolicyName;
    options.core.settings.every_steps = kReportEvery;
    options.core.settings.layers_per_chunk = 1;
    runner_ = *Runner::Start(options, std::move(store));
  }
  void Say(Rank& rank, wire::UpMessage message) {
    if (rank.session == 0) {
      rank.session = *runner_->sessions().Open(rank.stream.mailbox(), MonotonicNow());
    }
    ASSERT_EQ(
        runner_->Push(core::SessionMessage{.session = rank.session, .message = std::move(message)}),
        Admission::kQueued);
  }
  void Join() {
    for (int32_t rank = 0; rank < 2; ++rank) Say(ranks_[rank], HelloOf(rank, 100 + rank));
    for (Rank& rank : ranks_) ASSERT_TRUE(rank.stream.Wait<wire::Welcome>().has_value());
  }
  // Reports until the daemon proposes something.
  std::optional<wire::Propose> Propose() {
    for (Rank& rank : ranks_) Say(rank, ReportOf(0));
    std::optional<wire::Propose> proposal = ranks_[0].stream.Wait<wire::Propose>();
    EXPECT_TRUE(ranks_[1].stream.Wait<wire::Propose>().has_value());
    return proposal;
  }

  // Both ranks prepare and apply it.
  void Commit(const wire::Propose& proposal) {
    for (Rank& rank : ranks_) {
      Say(rank, wire::Prepared{.version = proposal.version, .digest = proposal.digest});
    }
    for (Rank& rank : ranks_) {
      Say(rank, wire::Applied{.version = proposal.version,
                              .digest = proposal.digest,
                              .step = 16,
                              .received_bytes = 500});
    }
    WaitFor([this] { return runner_->Job("job")->commits() == 1; });
  }
  static void WaitFor(const std::function<bool()>& condition) {
    const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
    while (!condition() && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_TRUE(condition());
  }

  // The runner writes to a stream until it ends: streams outlive it.
  Rank& AddRank() { return others_.emplace_back(); }

  Rank ranks_[2];
  std::deque<Rank> others_;
  FailingStore* store_ = nullptr;
  std::unique_ptr<Runner> runner_;
};

TEST_F(RunnerTest, AStoreThatRefusesTheTermIsServedFromAndNobodyIsWelcomed) {
  auto store = std::make_unique<FailingStore>();
  store->fail_terms = true;
  store_ = store.get();
  runner_ = *Runner::Start({}, std::move(store));
  EXPECT_FALSE(runner_->Readiness().ok());
  EXPECT_TRUE(runner_->Jobs().empty());
  Say(ranks_[0], HelloOf(0, 100));
  const std::optional<absl::Status> closed = ranks_[0].stream.WaitForClose();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->code(), absl::StatusCode::kUnavailable);
  store_->fail_terms = false;
  Rank& again = AddRank();
  Say(again, HelloOf(0, 100));
  EXPECT_TRUE(again.stream.Wait<wire::Welcome>().has_value());
  EXPECT_EQ(*store_->ReadTerm(), 1);
}

TEST_F(RunnerTest, TooLittleRoomForStreamsIsAWarningOnceHalfOfThatRoomIsTaken) {
  TestStream& first = AddRank().stream;
  TestStream& second = AddRank().stream;
  RunnerOptions options;
  options.sessions.max_sessions = 4;
  options.room_warning = "there is room for 4 streams";
  const std::unique_ptr<Runner> runner = *Runner::Start(std::move(options), MakeMemoryStore());
  ASSERT_TRUE(runner->sessions().Open(first.mailbox(), MonotonicNow()).ok());
  EXPECT_THAT(runner->Warnings(), testing::IsEmpty());
  ASSERT_TRUE(runner->sessions().Open(second.mailbox(), MonotonicNow()).ok());
  EXPECT_THAT(runner->Warnings(), testing::ElementsAre("there is room for 4 streams"));
}

TEST_F(RunnerTest, FromHelloToCommit) {
  Start();
  Join();
  const std::optional<wire::Propose> proposal = Propose();
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(proposal->term, 1);
  EXPECT_EQ(proposal->base_version, 0);
  // Written before it was sent.
  EXPECT_GT(store_->ReadJobs()->at(0).next_version, proposal->version);
  Commit(*proposal);
  Say(ranks_[0], wire::Goodbye{.reason = "finished", .missing_ranks = {}, .failed = false});
  // The drain is handled after all that was pushed before it.
  (void)runner_->Push(core::DrainRequested{.grace = absl::Seconds(1)});
  ASSERT_TRUE(ranks_[1].stream.Wait<wire::Drain>().has_value());
  EXPECT_EQ(runner_->Job("job")->version(), proposal->version);
  EXPECT_EQ(runner_->PlacementInForce("job")->digest, proposal->digest);
  EXPECT_FALSE(runner_->Readiness().ok());
  const std::vector<v1::JobEvent> events = *runner_->Events("job", 100);
  EXPECT_THAT(events, ::testing::Contains(::testing::Property(&v1::JobEvent::name, "committed")));
}

TEST_F(RunnerTest, WindowsCanBeLookedBackAt) {
  Start();
  Join();
  EXPECT_TRUE(runner_->Windows("job", 0, 9)->empty()) << "there is none yet";
  EXPECT_EQ(runner_->LoadsOf("job", std::nullopt).status().code(), absl::StatusCode::kNotFound);
  for (int64_t window = 0; window < 3; ++window) {
    for (Rank& rank : ranks_) Say(rank, ReportOf(window * kReportEvery));
  }
  WaitFor([this] { return runner_->Windows("job", 0, 9)->size() == 3; });
  const std::vector<v1::Window> windows = *runner_->Windows("job", 0, 9);
  EXPECT_EQ(windows[0].first_step(), 0);
  EXPECT_EQ(windows[2].last_step(), 3 * kReportEvery - 1);
  EXPECT_EQ(windows[0].run_id(), "first");
  EXPECT_EQ(windows[0].tokens(), 2 * (1000 + 900 + 10 + 20));
  EXPECT_NEAR(windows[0].balancedness(), 965.0 / 1900, 1e-9);
  const auto first = static_cast<int64_t>(windows[0].window());
  EXPECT_EQ(runner_->Windows("job", first, 1)->front().window(), windows[2].window());
  const WindowLoads loads = *runner_->LoadsOf("job", first);
  EXPECT_EQ(loads.load->counts()(0, 0), 2000);
  EXPECT_EQ(loads.on_gpus_static(0, 0), 3800);
  EXPECT_EQ(runner_->LoadsOf("job", std::nullopt)->figures.window(), windows[2].window());
}

TEST_F(RunnerTest, WindowsAreWrittenWhileTheDaemonRunsAndSurviveARestart) {
  const Folder folder;
  const std::string path = folder.File("eplbd.db");
  StartOn(*MakeSqliteStore(path));
  Join();
  for (Rank& rank : ranks_) Say(rank, ReportOf(0));
  WaitFor([this] { return runner_->Windows("job", 0, 9)->size() == 1; });
  const v1::Window before = runner_->Windows("job", 0, 9)->front();
  WaitFor([&path] {
    absl::StatusOr<sqlite::Connection> reader = sqlite::Connection::Open(path, true);
    return reader.ok() &&
           reader->FirstText("SELECT count(*) FROM rows WHERE key LIKE 'window/%'").value_or("") ==
               "1";
  });
  runner_.reset();
  StartOn(*MakeSqliteStore(path));
  const std::vector<v1::Window> after = *runner_->Windows("job", 0, 9);
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after.front().window(), before.window());
  EXPECT_EQ(after.front().balancedness(), before.balancedness());
  EXPECT_EQ(after.front().last_step(), before.last_step());
  EXPECT_FALSE(after.front().has_loads());
}

TEST_F(RunnerTest, WhatADecisionMovedFollowsFromThePlacementsThatAreKept) {
  Start();
  Join();
  EXPECT_EQ(runner_->TrafficOf("job", std::nullopt).status().message(),
            "no plan of job job has moved an expert yet");
  const std::optional<wire::Propose> proposal = Propose();
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(runner_->TrafficOf("job", 1).status().message(),
            "plan 1 of job job moved no expert: it was proposed");
  Commit(*proposal);
  const Traffic traffic = *runner_->TrafficOf("job", std::nullopt);
  EXPECT_EQ(traffic.plan, 1);
  EXPECT_EQ(traffic.base_version, 0);
  EXPECT_EQ(traffic.last_version, proposal->version);
  EXPECT_EQ(traffic.num_gpus, 2);
  EXPECT_EQ(traffic.flows.transfers, runner_->Plans("job", 9)->front().transfers());
  EXPECT_EQ(traffic.received_bytes, 1000);
  EXPECT_FALSE(traffic.flows.gpus.empty());
  EXPECT_EQ(runner_->TrafficOf("job", 1)->flows.gpus.size(), traffic.flows.gpus.size());
  EXPECT_EQ(runner_->TrafficOf("job", 9).status().message(),
            "job job has no decision 9: 1..1 are kept");
}

// Its first chunk exchanged experts 0 and 2; the second was never committed.
TEST_F(RunnerTest, WhatAPartOfADecisionMovedIsShownWhileItsPlacementsAreKept) {
  const Topology topology = *Topology::Make(kSmallShape);
  IndexMatrix exchanged = Placement::Static(topology).physical_to_logical_map();
  std::swap(exchanged(0, 0), exchanged(0, 2));
  auto store = MakeMemoryStore({.max_history = 2});
  core::StoredJob job{
      .job = "job", .version = 3, .next_version = 9, .placement = Placement::Static(topology)};
  ASSERT_TRUE(store->WriteJob(job).ok());
  job.version = 5;
  job.placement = *Placement::FromSlots(topology, exchanged);
  ASSERT_TRUE(store->WriteJob(job).ok());
  auto plan = MessageOf<v1::Plan>(
      "plan: 1 base_version: 3 last_version: 5 num_chunks: 2 chunks_committed: 1 "
      "result: PLAN_RESULT_PARTIAL");
  ASSERT_TRUE(store->WritePlan("job", plan).ok());
  plan.set_plan(2);
  plan.set_base_version(1);
  ASSERT_TRUE(store->WritePlan("job", plan).ok());
  runner_ = *Runner::Start({}, std::move(store));
  const Traffic traffic = *runner_->TrafficOf("job", 1);
  EXPECT_EQ(traffic.flows.transfers, 2);
  EXPECT_EQ(traffic.last_version, 5);
  const absl::Status gone = runner_->TrafficOf("job", 2).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(gone.message(), "version 1 of job job is not kept");
}

// The stream may be over before the core has read the Goodbye.
TEST_F(RunnerTest, AGoodbyeCountsAfterTheEndOfItsStream) {
  Start();
  Join();
  for (Rank& rank : ranks_) {
    runner_->sessions().Remove(rank.session);
    Say(rank, wire::Goodbye{.reason = "finished", .missing_ranks = {}, .failed = false});
    ASSERT_EQ(runner_->Push(core::SessionClosed{.session = rank.session, .reason = "gone"}),
              Admission::kQueued);
  }
  WaitFor([this] { return runner_->Job("job")->ending() == v1::RUN_ENDING_FINISHED; });
}

TEST_F(RunnerTest, WhatWasSaidOnAStreamThatTheCoreClosedIsNotHeard) {
  Start();
  Join();
  Rank& twin = AddRank();
  Say(twin, HelloOf(0, 999));
  ASSERT_TRUE(twin.stream.WaitForClose().has_value());
  runner_->sessions().Spoke(twin.session);
  runner_->sessions().Remove(twin.session);
  const int64_t refused = runner_->Counters().core.refused;
  Say(twin, HelloOf(0, 999));  // it was behind the first one
  ASSERT_EQ(runner_->Push(core::SessionClosed{.session = twin.session, .reason = "gone"}),
            Admission::kQueued);
  Rank& third = AddRank();
  Say(third, HelloOf(1, 999));  // behind both
  ASSERT_TRUE(third.stream.WaitForClose().has_value());
  EXPECT_EQ(runner_->Counters().core.refused, refused + 1);
}

TEST_F(RunnerTest, AnUnknownJobIsNotFound) {
  Start();
  for (const absl::Status& status :
       {runner_->Job("nobody").status(), runner_->PlacementInForce("nobody").status(),
        runner_->Events("nobody", 5).status(), runner_->Windows("nobody", 0, 5).status(),
        runner_->LoadsOf("nobody", {}).status(), runner_->TrafficOf("nobody", {}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  }
  EXPECT_TRUE(runner_->Jobs().empty());
  EXPECT_TRUE(runner_->Alive().ok());
  EXPECT_TRUE(runner_->Readiness().ok());
}

TEST(StoredWindowsTest, AnEndedRunIsShownWithItsNewestWindow) {
  std::unique_ptr<Store> store = MakeMemoryStore();
  core::StoredJob job{.job = "train", .version = 5, .next_version = 6};
  job.end = MessageOf<v1::RunEnd>("ending: RUN_ENDING_FINISHED run_id: 'a'");
  ASSERT_TRUE(store->WriteJob(job).ok());
  const std::vector<StoredWindow> windows = {
      {"train", MessageOf<v1::Window>("window: 1 run_id: 'a' last_step: 9 balancedness: 0.5")},
      {"other", MessageOf<v1::Window>("window: 2 run_id: 'a' last_step: 9 balancedness: 0.25")},
      {"train", MessageOf<v1::Window>("window: 3 run_id: 'a' last_step: 19 balancedness: 0.75")}};
  ASSERT_TRUE(store->WriteWindows(windows).ok());
  const v1::JobStatus shown = *(*Runner::Start({}, std::move(store)))->Job("train");
  EXPECT_EQ(shown.balancedness(), 0.75);
  EXPECT_EQ(shown.measured_last_step(), 19);
}

// A runner that finds the job with these plans in its store.
std::unique_ptr<Runner> RunnerWith(const std::vector<v1::Plan>& plans) {
  std::unique_ptr<Store> store = MakeMemoryStore();
  const core::StoredJob job{.job = "train",
                            .version = 5,
                            .next_version = 6,
                            .placement = Placement::Static(*Topology::Make(kSmallShape))};
  EXPECT_TRUE(store->WriteJob(job).ok());
  for (const v1::Plan& plan : plans) EXPECT_TRUE(store->WritePlan("train", plan).ok());
  return *Runner::Start({}, std::move(store));
}

v1::Plan PlanAt(uint64_t number, uint64_t switched_step) {
  v1::Plan plan;
  plan.set_plan(number);
  plan.set_result(switched_step > 0 ? v1::PLAN_RESULT_COMMITTED : v1::PLAN_RESULT_KEPT);
  plan.set_switched_step(switched_step);
  return plan;
}

TEST(StoredPlansTest, DecisionsThatKeepThePlacementDoNotHideTheLastCommit) {
  std::vector<v1::Plan> plans = {PlanAt(1, 16), PlanAt(2, 77)};
  plans.back().set_chunks_committed(1);
  plans.back().set_balancedness_predicted(0.75);
  plans.back().set_balancedness_seen(0.5);
  for (uint64_t number = 3; number < 203; ++number) plans.push_back(PlanAt(number, 0));
  const std::unique_ptr<Runner> runner = RunnerWith(plans);
  const v1::JobStatus job = *runner->Job("train");
  EXPECT_EQ(job.last_switched_step(), 77);
  EXPECT_EQ(job.balancedness_predicted(), 0.75);
  EXPECT_EQ(job.balancedness_seen(), 0.5);
}

TEST(StoredPlansTest, AJobThatNeverSwitchedHasNoLastCommit) {
  std::vector<v1::Plan> plans;
  for (uint64_t number = 1; number < 30; ++number) plans.push_back(PlanAt(number, 0));
  const std::unique_ptr<Runner> kept = RunnerWith(plans);
  EXPECT_EQ(kept->Job("train")->last_switched_step(), 0);
  EXPECT_FALSE(kept->Job("train")->has_balancedness_predicted());
  const std::unique_ptr<Runner> none = RunnerWith({});
  EXPECT_EQ(none->Job("train")->last_switched_step(), 0);
}

}  // namespace
}  // namespace eplb
