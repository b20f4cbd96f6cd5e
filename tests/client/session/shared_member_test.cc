#include "client/session/shared_member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/client/session/proposals.h"

namespace eplb {
namespace {

class SharedMemberTest : public ::testing::Test {
 protected:
  static Member MakeMember(const Placement& base) {
    MemberOptions options;
    options.identity.step = -1;
    options.migration.weight_bytes = 64;
    options.fits = [](const MigrationPlan&) { return absl::OkStatus(); };
    return {options, Running(0, base)};
  }
  static wire::LoadReport Window(int64_t step) {
    return {.first_step = step, .last_step = step, .counts = LoadMatrix::Zero(1, 1)};
  }

  const Placement base_ = Placement::Static(SmallTopology());
  const Placement target_ = Swapped(base_, 0, 0, 2);
  std::vector<int64_t> prepared_;  // versions that became PREPARED
  SharedMember member_{MakeMember(base_), 100, [this](const Proposal& proposal, int64_t) {
                         prepared_.push_back(proposal.propose.version);
                       }};
};

TEST_F(SharedMemberTest, AnswersLeaveBeforeWindowsAndGoodbyeAfterOneMore) {
  member_.FinishStep(0, Window(0), 1);
  member_.OnDown(ProposeTo(Running(0, base_), target_, 3, 1));
  EXPECT_EQ(std::get<wire::Prepared>(*member_.Next(true)).version, 3);
  EXPECT_FALSE(member_.Next(/*with_windows=*/false).has_value());
  EXPECT_EQ(std::get<wire::LoadReport>(*member_.Next(true)).last_step, 0);
  EXPECT_FALSE(member_.Next(true).has_value());
  for (const int64_t step : {1, 2}) member_.FinishStep(step, Window(step), 1);
  member_.OnDown(wire::Cancel{.version = 3});
  member_.SayGoodbye({.reason = "finished"});
  EXPECT_TRUE(std::holds_alternative<wire::Failed>(*member_.Next(true)));
  EXPECT_TRUE(std::holds_alternative<wire::Goodbye>(*member_.Next(/*with_windows=*/false)));
  EXPECT_EQ(std::get<wire::LoadReport>(*member_.Next(true)).last_step, 1);
  EXPECT_EQ(std::get<wire::Goodbye>(*member_.Next(true)).reason, "finished");
}

TEST_F(SharedMemberTest, ReadyIsToldBeforeItLeaves) {
  wire::Propose bad = ProposeTo(Running(0, base_), target_, 3, 1);
  bad.digest.bytes[0] ^= 1;
  member_.OnDown(bad);
  EXPECT_TRUE(prepared_.empty());
  member_.OnDown(ProposeTo(Running(0, base_), target_, 4, 1));
  EXPECT_THAT(prepared_, ::testing::ElementsAre(4));
}

// A line "ready" behind the line "stop" would be a broken history.
TEST_F(SharedMemberTest, NothingBecomesReadyAfterGoodbye) {
  member_.SayGoodbye({.reason = "finished"});
  member_.OnDown(ProposeTo(Running(0, base_), target_, 3, 1));
  EXPECT_TRUE(prepared_.empty());
  EXPECT_TRUE(std::holds_alternative<wire::Goodbye>(*member_.Next(true)));
}

TEST_F(SharedMemberTest, NewConnectionSaysTheTruthInsteadOfOldAnswers) {
  member_.OnDown(ProposeTo(Running(0, base_), target_, 3, 1));
  EXPECT_EQ(member_.Connect().prepared_version, 3);
  EXPECT_FALSE(member_.Next(true).has_value());
}

TEST_F(SharedMemberTest, WindowsAndGoodbyeSurviveANewConnection) {
  member_.FinishStep(0, Window(0), 1);
  member_.Connect();
  EXPECT_TRUE(std::holds_alternative<wire::LoadReport>(*member_.Next(true)));
  member_.OnEnded("vote: rank 1 is missing", std::vector<RankId>{RankId{1}});
  member_.Connect();
  EXPECT_TRUE(std::get<wire::Goodbye>(*member_.Next(true)).failed);
}

TEST_F(SharedMemberTest, FirstGoodbyeStays) {
  member_.OnEnded("vote: rank 1 is missing", std::vector<RankId>{RankId{1}});
  member_.SayGoodbye({.reason = "finished"});
  EXPECT_EQ(std::get<wire::Goodbye>(*member_.Next(true)).reason, "vote: rank 1 is missing");
}

TEST_F(SharedMemberTest, AnswersThatNobodyTakesEndTheConnection) {
  for (size_t i = 0; i < SharedMember::kMaxMessages; ++i) {
    member_.OnDown(wire::Cancel{.version = 9});
    EXPECT_FALSE(member_.TakeOverflow());
  }
  member_.OnDown(wire::Cancel{.version = 9});
  EXPECT_TRUE(member_.TakeOverflow());
  EXPECT_FALSE(member_.TakeOverflow());
  EXPECT_FALSE(member_.Next(true).has_value());
}

TEST_F(SharedMemberTest, TheReportIntervalReachesTheTrainingThread) {
  EXPECT_EQ(member_.FinishStep(0, std::nullopt, 50).report_every, 0);
  member_.OnDown(wire::SetReportInterval{.report_every = 200, .from_step = 600});
  const wire::SetReportInterval pace = member_.FinishStep(1, std::nullopt, 50);
  EXPECT_EQ(pace.report_every, 200);
  EXPECT_EQ(pace.from_step, 600);
}

TEST_F(SharedMemberTest, HelloSaysTheLengthOfWindowsInForce) {
  member_.FinishStep(599, std::nullopt, 200);
  EXPECT_EQ(member_.Connect().report_every, 200);
}

TEST_F(SharedMemberTest, TheStepOfEveryMessageIsTheLastFinishedOne) {
  EXPECT_EQ(member_.Connect().step, 0);
  member_.FinishStep(41, std::nullopt, 1);
  EXPECT_EQ(member_.Connect().step, 41);
  member_.OnDown(ProposeTo(Running(0, base_), target_, 3, 1));
  (void)member_.Next(true);
  member_.FinishStep(42, std::nullopt, 1);
  member_.OnDown(wire::Cancel{.version = 3});
  EXPECT_EQ(std::get<wire::Failed>(*member_.Next(true)).step, 42);
}

TEST_F(SharedMemberTest, AVoteWithNothingPreparedFindsOtherPlacementsAndOpensNothing) {
  const VoteSnapshot own = member_.Enter();
  EXPECT_EQ(own.proposal, nullptr);
  EXPECT_EQ(own.values[4], DigestOf(base_).VoteBits());
  // PREPARED too late for this vote, and for the next one in time.
  member_.OnDown(ProposeTo(Running(0, base_), target_, 3, 1));
  EXPECT_EQ(member_.Decide(own.values).outcome, VoteOutcome::kNothing);
  const VoteSnapshot next = member_.Enter();
  ASSERT_NE(next.proposal, nullptr);
  EXPECT_EQ(member_.Decide(next.values).outcome, VoteOutcome::kRunChunk);
  member_.OnApplied(0, 0);
  const VoteSnapshot after = member_.Enter();
  EXPECT_EQ(after.values[4], DigestOf(target_).VoteBits());
  std::array<int64_t, 6> minimum = after.values;
  minimum[5] = -DigestOf(base_).VoteBits();
  EXPECT_EQ(member_.Decide(minimum).outcome, VoteOutcome::kDiverged);
}

// One thread trains and votes alone, one plays the daemon: every proposal ends as Applied or
// Failed, never both, and versions rise.
TEST_F(SharedMemberTest, TrainingAndSessionThreadsAgreeOnEveryOutcome) {
  constexpr int64_t kVersions = 200;
  std::atomic<bool> stop = false;
  std::thread training([&] {
    for (int64_t step = 0; !stop; ++step) {
      member_.FinishStep(step, Window(step), 1);
      const VoteSnapshot snapshot = member_.Enter();
      if (member_.Decide(snapshot.values).outcome != VoteOutcome::kRunChunk) continue;
      if (step % 3 == 0) {
        member_.OnDropped("every third");
      } else {
        member_.OnApplied(0, 0);
      }
    }
  });
  int64_t applied = 0;
  int64_t failed = 0;
  RunningPlacement running = Running(0, base_);
  for (int64_t version = 1; version <= kVersions; ++version) {
    const Placement& next = *running.placement == base_ ? target_ : base_;
    member_.OnDown(ProposeTo(running, next, version, 1));
    if (version % 2 == 0) member_.OnDown(wire::Cancel{.version = version});
    for (bool open = true; open;) {
      const std::optional<wire::UpMessage> message = member_.Next(true);
      if (!message.has_value()) {
        std::this_thread::yield();
      } else if (const auto* now_runs = std::get_if<wire::Applied>(&*message)) {
        if (now_runs->version != version) continue;  // the cancel's echo of the one before
        running = Running(version, next);
        ++applied;
        open = false;
      } else if (const auto* failure = std::get_if<wire::Failed>(&*message)) {
        if (failure->version != version) continue;
        ++failed;
        open = false;
      }
    }
  }
  stop = true;
  training.join();
  EXPECT_EQ(applied + failed, kVersions);
  EXPECT_GT(applied, 0);
  EXPECT_EQ(member_.Connect().running_version, running.version);
}

}  // namespace
}  // namespace eplb
