#include "server/core/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/core/core_harness.h"
#include "tests/support/messages.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

TEST(CoreTest, ADaemonLeadsWithTheTermAboveTheStoredOne) {
  const Core core(TestConfig(), 6, {}, absl::UnixEpoch());
  EXPECT_EQ(core.term(), 7);
}

TEST(CoreTest, AStoredJobIsToldBeforeAnyRankComes) {
  const StoredJob stored{kJob, 4, 9, Exchanged({1})};
  const Core core(TestConfig(), 0, {stored}, absl::UnixEpoch());
  const v1::JobStatus view = core.Job(kJob, absl::UnixEpoch() + absl::Seconds(3)).value();
  EXPECT_EQ(view.state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(view.state_seconds(), 3);
  EXPECT_EQ(view.waiting_for(), "the ranks to register");
  EXPECT_EQ(view.version(), 4);
  EXPECT_EQ(core.PlacementInForce(kJob)->placement, Exchanged({1}));
  EXPECT_EQ(core.Jobs(absl::UnixEpoch()).size(), 1u);
  EXPECT_FALSE(view.has_step()) << "no rank has reported one";
  EXPECT_FALSE(view.has_world_size());
  EXPECT_EQ(view.shape().num_layers(), 4) << "that of its placement";
}

TEST(CoreTest, ARunThatEndedBeforeTheDaemonStartedKeepsItsFigures) {
  StoredJob stored{kJob, 4, 9, Exchanged({1})};
  stored.end =
      MessageOf<v1::RunEnd>("ending: RUN_ENDING_FINISHED run_id: 'a' world_size: 3 step: 99");
  stored.newest_window = MessageOf<v1::Window>(
      "run_id: 'a' first_step: 90 last_step: 99 coverage: 1 split: 'equal' balancedness: 0.75 "
      "balancedness_without_eplb: 0.5");
  const auto view = [&stored] {
    return *Core(TestConfig(), 0, {stored}, absl::UnixEpoch()).Job(kJob, absl::UnixEpoch());
  };
  EXPECT_EQ(view().balancedness(), 0.75);
  EXPECT_EQ(view().balancedness_without_eplb(), 0.5);
  EXPECT_FALSE(view().has_balancedness_static());
  EXPECT_EQ(view().measured_first_step(), 90);
  EXPECT_EQ(view().last_window_last_step(), 99);
  EXPECT_EQ(view().coverage(), 1);
  EXPECT_EQ(view().measured_split(), "equal");
  EXPECT_EQ(view().not_measured_reason(), "");
  EXPECT_EQ(view().step(), 99);
  EXPECT_EQ(view().world_size(), 3);
  stored.newest_window->set_run_id("b");
  EXPECT_FALSE(view().has_balancedness()) << "of another run";
}

TEST(CoreTest, TheViewHasTheRanksStepsAndWhatWasMeasured) {
  ConnectedJob job;
  EXPECT_FALSE(job.daemon.View().has_balancedness());
  job.Report(0, 9);
  v1::JobStatus view = job.daemon.View();
  EXPECT_NEAR(view.balancedness(), 0.4, 1e-9);  // mean of 200, 20, 20 over 200
  EXPECT_EQ(view.step(), 9);
  EXPECT_EQ(view.ranks(2).step(), 9);
  EXPECT_TRUE(view.ranks(2).connected());
  job.daemon.AnswerSolve(Exchanged({0, 1}));
  EXPECT_TRUE(job.daemon.cancelled_solves().empty()) << "it was answered";
  job.Deliver();
  EXPECT_EQ(job.daemon.View().ranks(1).prepared_version(), 1);
  job.VoteAndDeliver(12);
  view = job.daemon.View();
  EXPECT_EQ(view.ranks(1).running_version(), 1);
  EXPECT_EQ(view.ranks(1).prepared_version(), 0);
  EXPECT_EQ(view.step(), 12);
}

TEST(CoreTest, ACompleteWindowIsHandedOutToBeLookedBackAt) {
  ConnectedJob job;
  job.daemon.Say(job.ranks[0].session, TestReport(0, 9));
  EXPECT_TRUE(job.daemon.past_windows().empty()) << "two ranks are missing";
  job.daemon.Say(job.ranks[1].session, TestReport(0, 9));
  job.daemon.Say(job.ranks[2].session, TestReport(0, 9));
  ASSERT_EQ(job.daemon.past_windows().size(), 1u);
  const PastWindow window = job.daemon.past_windows().back();
  EXPECT_EQ(window.run_id, job.daemon.View().run_id());
  EXPECT_EQ(window.shape.num_gpus, TestShape().num_gpus);
  EXPECT_EQ(window.shape.num_slots, TestShape().num_slots);
  EXPECT_EQ(window.first_step, 0);
  EXPECT_EQ(window.last_step, 9);
  EXPECT_EQ(window.coverage, 1);
  EXPECT_EQ(window.load->counts()(3, 0), 300);  // sum of three ranks
  EXPECT_EQ(window.load->counts()(3, 5), 30);
  EXPECT_EQ(window.on_gpus->versions, std::vector<int64_t>{0});
  EXPECT_EQ(window.on_gpus->loads(3, 0), 600);  // experts 0 and 1
  EXPECT_EQ(window.split, SplitMode::kEqual);
  ASSERT_TRUE(window.measured.has_value());
  EXPECT_NEAR(window.measured->balancedness, 0.4, 1e-9);
  EXPECT_EQ(window.measured->versions, std::vector<int64_t>{0});
}

TEST(CoreTest, AWindowOfUnknownPlacementsIsHandedOutWithoutMeasuredFigures) {
  AskedJob job;
  for (FakeRank& rank : job.ranks) {
    wire::LoadReport report = TestReport(10, 19);
    report.version = 77;
    job.daemon.Say(rank.session, std::move(report));
  }
  ASSERT_EQ(job.daemon.past_windows().size(), 2u);
  const PastWindow window = job.daemon.past_windows().back();
  EXPECT_EQ(window.first_step, 10);
  EXPECT_NE(window.load, nullptr);
  EXPECT_EQ(window.on_gpus, nullptr);
  EXPECT_FALSE(window.measured.has_value()) << "what was measured is of the window before";
}

TEST(CoreTest, MalformedMessagesEndTheSessionAndNothingElse) {
  const wire::UpMessage malformed[] = {
      wire::LoadReport{9, 0, LoadMatrix::Zero(4, 6), 0},
      wire::LoadReport{0, 9, LoadMatrix::Zero(1, 1), 0},
      wire::LoadReport{0, std::numeric_limits<int64_t>::max(), LoadMatrix::Zero(4, 6), 0},
      wire::Prepared{-1, {}, {}},
      wire::Applied{std::numeric_limits<int64_t>::max(), {}, 0, 0, 0},
      wire::Applied{1, {}, 0, -1, 0},
      wire::Applied{1, {}, 0, 0, std::numeric_limits<double>::quiet_NaN()},
      wire::Failed{1, wire::FailedCode::kTransfer, "", -1},
      wire::Nack{-1, wire::NackCode::kBusy, ""}};
  ConnectedJob job;
  for (const wire::UpMessage& message : malformed) {
    job.Connect(1);
    job.daemon.Say(job.ranks[1].session, message);
    const auto status = job.ClosedWith(1);
    ASSERT_TRUE(status.has_value()) << message.index();
    EXPECT_EQ(status->code(), absl::StatusCode::kInvalidArgument);
  }
  job.Connect(1);
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(CoreTest, WindowsThatStayIncompleteAreRecordedWithWhoIsMissing) {
  Config config = TestConfig();
  config.max_pending_windows = 1;
  ConnectedJob job(config);
  job.daemon.Say(job.ranks[0].session, TestReport(0, 9));
  job.daemon.Say(job.ranks[0].session, TestReport(10, 19));
  job.daemon.AdvanceSeconds(25);
  EXPECT_EQ(job.daemon.CountEvents("window_incomplete"), 0);
  job.daemon.Say(job.ranks[0].session, TestReport(20, 29));
  EXPECT_THAT(job.daemon.LastReason("window_incomplete"), HasSubstr("no report of ranks 1, 2"));
}

// Window 0..9 is older than its patience when the daemon goes on, and its reports were sent in
// time.
TEST(CoreTest, NoWindowIsGivenUpForAStandstillOfTheDaemonItself) {
  Config config = TestConfig();
  config.max_pending_windows = 1;
  ConnectedJob job(config);
  job.daemon.Say(job.ranks[0].session, TestReport(0, 9));
  job.daemon.Advance(absl::Seconds(60));
  for (const int rank : {0, 1, 2}) {
    for (int64_t step = 0; step < 200; step += 10) {
      job.daemon.Say(job.ranks[rank].session, TestReport(step, step + 9));
    }
  }
  EXPECT_EQ(job.daemon.core().counters().windows_given_up, 0);
  EXPECT_EQ(job.daemon.core().counters().windows, 20);
}

TEST(DrainTest, PreparingIsCancelledAndEverySessionIsTold) {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  job.daemon.Handle(DrainRequested{absl::Seconds(10)});
  EXPECT_EQ(job.daemon.state(), "CANCELLING");
  const auto sent = job.SentTo(1);
  EXPECT_EQ(Only<wire::Drain>(sent).at(0).grace_ms, 10000);
  EXPECT_EQ(Only<wire::Cancel>(sent).size(), 1u);
  EXPECT_FALSE(job.daemon.core().Readiness().ok());
}

TEST(DrainTest, VotingContinuesButNoFurtherChunkFollows) {
  PreparedJob job(Exchanged({0, 1, 2, 3}));
  job.daemon.Handle(DrainRequested{absl::Seconds(10)});
  EXPECT_EQ(job.daemon.state(), "VOTING");
  job.VoteAndDeliver(12);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.stored().at(kJob).version, 1);
  job.Report(20, 39);
  EXPECT_EQ(job.daemon.num_solves(), 1);
}

TEST(StoreFailureTest, AProposalThatCannotBeStoredIsNeverSentAndTheStoreIsTriedAgain) {
  AskedJob job;
  job.daemon.store_works = false;
  job.daemon.AnswerSolve(Exchanged({0, 1}));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_FALSE(job.daemon.HasMail(job.ranks[0].session));
  EXPECT_THAT(std::string(job.daemon.core().Readiness().message()), HasSubstr("disk full"));
  job.daemon.Advance(absl::Seconds(11));
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_FALSE(job.daemon.core().Readiness().ok());
  job.daemon.store_works = true;
  job.daemon.Advance(absl::Seconds(11));
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_TRUE(job.daemon.core().Readiness().ok());
  // The version that was drawn for the proposal that no rank saw is not used again.
  job.Report(20, 39);
  job.daemon.AnswerSolve(Exchanged({0, 1}));
  EXPECT_EQ(Only<wire::Propose>(job.SentTo(0)).at(0).version, 2);
}

TEST(StoreFailureTest, ACommitIsACommitEvenWhenItCannotBeStored) {
  PreparedJob job(Exchanged({0, 1, 2, 3}));
  job.daemon.store_works = false;
  job.VoteAndDeliver(12);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 1);
  EXPECT_EQ(job.daemon.stored().at(kJob).version, 0);
  job.daemon.store_works = true;
  job.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(job.daemon.stored().at(kJob).version, 1);
}

}  // namespace
}  // namespace eplb::core
