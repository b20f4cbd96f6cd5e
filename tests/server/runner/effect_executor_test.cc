#include "server/runner/effect_executor.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/server/failing_store.h"
#include "tests/server/test_stream.h"
#include "tests/support/messages.h"

namespace eplb {
namespace {

class EffectExecutorTest : public ::testing::Test {
 protected:
  core::StoredJob Job() {
    return {.job = "job",
            .version = 1,
            .next_version = 2,
            .placement = Placement::Static(*Topology::Make(kSmallShape))};
  }
  core::Solve SolveOf(int64_t id) {
    core::Solve solve;
    solve.job = "job";
    solve.solve_id = id;
    return solve;
  }
  core::KeepWindow Window() {
    return {.job = "job",
            .window = {.shape = kSmallShape,
                       .last_step = 9,
                       .load = std::make_shared<const Load>(
                           *Load::FromCounts(LoadMatrix::Constant(1, 4, 5)))}};
  }
  size_t num_windows() const { return history_.Figures("job", 0, 9).size(); }
  core::Record Event() {
    return {.event = MessageOf<v1::JobEvent>(R"(job: "job" name: "kept" reason: "why")")};
  }

  FailingStore store_;
  Sessions sessions_{{}};
  TestStream stream_;
  core::SessionId session_ = *sessions_.Open(stream_.mailbox(), absl::UnixEpoch());
  std::vector<core::Solve> solves_;
  WindowHistory history_{{}};
  EffectExecutor executor_{
      {.store = &store_,
       .sessions = &sessions_,
       .solve = [this](core::Solve solve) { solves_.push_back(std::move(solve)); },
       .history = &history_}};
};

TEST_F(EffectExecutorTest, EveryEffectReachesItsSink) {
  const core::Decision decision = {
      .effects = {core::StoreTerm{.term = 4}, core::Store{.job = Job()}, Event(), SolveOf(9),
                  Window(),
                  core::Send{.session = session_,
                             .message = wire::SetReportInterval{.report_every = 5}},
                  core::Close{.session = session_, .status = absl::AbortedError("over")}},
      .reason = ""};
  EXPECT_FALSE(executor_.Execute(decision).has_value());
  EXPECT_EQ(*store_.ReadTerm(), 4);
  EXPECT_EQ(store_.ReadJobs()->size(), 1);
  EXPECT_EQ(store_.ReadEvents("job", 9, 0)->front().reason(), "why");
  EXPECT_EQ(solves_.at(0).solve_id, 9);
  ASSERT_EQ(num_windows(), 1);
  EXPECT_EQ(history_.Figures("job", 0, 9).front().last_step(), 9);
  EXPECT_GT(history_.Figures("job", 0, 9).front().completed_unix_micros(), 0);
  EXPECT_EQ(stream_.Wait<wire::SetReportInterval>()->report_every, 5);
  EXPECT_EQ(stream_.WaitForClose(), absl::AbortedError("over"));
}

TEST_F(EffectExecutorTest, AFailedStoreSkipsTheRestAndIsReported) {
  store_.fail_jobs = true;
  const auto failed = executor_.Execute(
      {.effects = {core::Store{.job = Job()}, SolveOf(1),
                   core::Send{.session = session_, .message = wire::SetReportInterval{}}},
       .reason = ""});
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->job, "job");
  EXPECT_EQ(failed->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(solves_.empty());
  sessions_.Send(session_, wire::Cancel{.version = 3, .reason = ""});
  EXPECT_FALSE(executor_.store_works());
  // The first message that arrives is the one after the failure.
  EXPECT_EQ(stream_.Wait<wire::Cancel>()->version, 3);
}

TEST_F(EffectExecutorTest, AFailedTermIsReportedWithoutAJob) {
  store_.fail_terms = true;
  const auto failed = executor_.Execute({.effects = {core::StoreTerm{.term = 4}}, .reason = ""});
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->job, "");
}

TEST_F(EffectExecutorTest, AnEventThatCannotBeStoredSkipsNothing) {
  store_.fail_events = true;
  EXPECT_FALSE(executor_.Execute({.effects = {Event(), SolveOf(1)}, .reason = ""}).has_value());
  EXPECT_EQ(solves_.size(), 1);
  EXPECT_FALSE(executor_.store_works());
}

TEST_F(EffectExecutorTest, OnlyTheForgettingThatWasAskedForStopsWhatFollows) {
  store_.fail_jobs = true;
  EXPECT_FALSE(
      executor_.Execute({.effects = {core::Forget{.job = "job"}, SolveOf(1)}, .reason = ""})
          .has_value());
  EXPECT_EQ(solves_.size(), 1);
  const auto failed = executor_.Execute(
      {.effects = {core::Forget{.job = "job", .required = true}, SolveOf(2)}, .reason = ""});
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->job, "job");
  EXPECT_EQ(solves_.size(), 1);
}

TEST_F(EffectExecutorTest, TheWindowsOfAJobAreForgottenWithIt) {
  ASSERT_FALSE(executor_.Execute({.effects = {Window()}, .reason = ""}).has_value());
  ASSERT_EQ(num_windows(), 1);
  store_.fail_jobs = true;
  const core::Forget asked{.job = "job", .required = true};
  ASSERT_TRUE(executor_.Execute({.effects = {asked}, .reason = ""}).has_value());
  EXPECT_EQ(num_windows(), 1) << "the job stays";
  ASSERT_FALSE(
      executor_.Execute({.effects = {core::Forget{.job = "job"}}, .reason = ""}).has_value());
  EXPECT_EQ(num_windows(), 0) << "the daemon does not know the job any more";
  store_.fail_jobs = false;
  ASSERT_FALSE(executor_.Execute({.effects = {Window(), asked}, .reason = ""}).has_value());
  EXPECT_EQ(num_windows(), 0);
}

TEST_F(EffectExecutorTest, AProbeFindsARecoveredStore) {
  store_.fail_terms = true;
  executor_.ProbeStore(1);
  EXPECT_FALSE(executor_.store_works());
  store_.fail_terms = false;
  executor_.ProbeStore(1);
  EXPECT_TRUE(executor_.store_works());
}

TEST_F(EffectExecutorTest, EveryWriteIsTimedAndFailuresAreCounted) {
  (void)executor_.Execute({.effects = {core::StoreTerm{.term = 4}, Event()}, .reason = ""});
  store_.fail_events = true;
  (void)executor_.Execute({.effects = {Event()}, .reason = ""});
  const core::Buckets view = executor_.write_seconds();
  EXPECT_EQ(view.total(), 3);
  EXPECT_GE(view.sum_seconds, 0);
  EXPECT_EQ(executor_.write_errors(), 1);
}

TEST_F(EffectExecutorTest, AFileThatWasReplacedIsAStoreThatDoesNotWorkUntilAWriteDoes) {
  executor_.CheckStore();
  EXPECT_TRUE(executor_.store_works());
  EXPECT_TRUE(executor_.store_status().ok());
  store_.fail_file = true;
  executor_.CheckStore();
  executor_.CheckStore();
  EXPECT_FALSE(executor_.store_works());
  EXPECT_EQ(executor_.store_status().message(), "store: replaced");
  EXPECT_EQ(executor_.write_errors(), 1) << "told once";
  store_.fail_file = false;
  executor_.CheckStore();
  EXPECT_FALSE(executor_.store_works()) << "only a write tells";
  executor_.ProbeStore(3);
  EXPECT_TRUE(executor_.store_works());
  EXPECT_TRUE(executor_.store_status().ok());
}

TEST_F(EffectExecutorTest, AStoreThatFailsForAnotherReasonTellsTheNewest) {
  store_.fail_terms = true;
  executor_.ProbeStore(1);
  EXPECT_EQ(executor_.store_status().message(), "store: disk full");
  store_.fail_file = true;
  executor_.CheckStore();
  EXPECT_EQ(executor_.store_status().message(), "store: replaced");
  EXPECT_FALSE(executor_.store_works());
}

}  // namespace
}  // namespace eplb
