#include "client/vote_cadence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "proto/wire/messages.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;

struct Rank {
  bool knows_proposal = false;
  bool has_daemon = true;
  int32_t report_every = 2;
};

// Returns the steps before `end` with a vote, if each rank is like this one.
std::vector<int64_t> Votes(VoteCadence& cadence, int64_t begin, int64_t end, const Rank& rank) {
  std::vector<int64_t> votes;
  for (int64_t step = begin; step < end; ++step) {
    if (!cadence.VotesAt(step)) continue;
    votes.push_back(step);
    cadence.Voted(step, cadence.Wants(step, rank.knows_proposal, rank.has_daemon,  //
                                      rank.report_every));
  }
  return votes;
}

TEST(VoteCadenceTest, TheFirstStepVotesAndThenMultiplesOfVoteEvery) {
  VoteCadence cadence(8, 100);
  EXPECT_THAT(Votes(cadence, 100, 130, {.has_daemon = false}),
              ElementsAre(100, 103, 111, 119, 127));
}

TEST(VoteCadenceTest, WhileARankKnowsAProposalEachStepVotes) {
  VoteCadence cadence(8, 0);
  EXPECT_THAT(Votes(cadence, 0, 3, {.knows_proposal = true}), ElementsAre(0, 1, 2));
  EXPECT_THAT(Votes(cadence, 3, 20, {.has_daemon = false}), ElementsAre(3, 7, 15));
}

TEST(VoteCadenceTest, WhoWaitsVotesSoonAfterTheEndOfAWindow) {
  VoteCadence cadence(16, 0);
  EXPECT_THAT(Votes(cadence, 0, 18, {.report_every = 8}), ElementsAre(0, 1, 3, 8, 9, 11, 16, 17));
  VoteCadence other(16, 0);
  EXPECT_THAT(Votes(other, 0, 16, {.report_every = 6}), ElementsAre(0, 1, 3, 6, 7, 9, 12, 13, 15));
  VoteCadence short_windows(16, 0);
  EXPECT_THAT(Votes(short_windows, 0, 4, {.report_every = 1}), ElementsAre(0, 1, 2, 3));
  VoteCadence long_windows(8, 0);
  EXPECT_THAT(Votes(long_windows, 0, 32, {.report_every = 64}),
              ElementsAre(0, 1, 3, 7, 15, 23, 31));
}

TEST(VoteCadenceTest, AJobThatStagesAheadVotesAtMultiplesAlone) {
  VoteCadence cadence(4, 0);
  cadence.SetAhead(true);
  EXPECT_THAT(Votes(cadence, 0, 12, {.knows_proposal = true}), ElementsAre(3, 7, 11));
  cadence.SetAhead(false);
  EXPECT_THAT(Votes(cadence, 12, 18, {.knows_proposal = true}), ElementsAre(15, 16, 17));
  VoteCadence from_checkpoint(4, 7);
  from_checkpoint.SetAhead(true);
  EXPECT_TRUE(from_checkpoint.VotesAt(7));
}

TEST(VoteCadenceTest, ARankWaitsAtTheStartAndAfterASwitch) {
  VoteCadence cadence(8, 96);
  EXPECT_EQ(cadence.Wants(96, /*knows_proposal=*/false, /*has_daemon=*/true, 2), 2);
  EXPECT_EQ(cadence.Wants(96, false, /*has_daemon=*/false, 2), 7);
  EXPECT_EQ(cadence.Wants(96 + VoteCadence::kActiveSteps, false, true, 2), 7);
  EXPECT_EQ(cadence.Wants(200, true, true, 2), 1);
  EXPECT_EQ(cadence.Wants(199 + VoteCadence::kMostVotes, true, true, 2), 1);
  EXPECT_EQ(cadence.Wants(200 + VoteCadence::kMostVotes, true, true, 2), 7) << "no daemon ends it";
  cadence.Switched(200, {});
  EXPECT_EQ(cadence.Wants(200 + VoteCadence::kActiveSteps, false, true, 2), 2);
  EXPECT_EQ(cadence.Wants(201 + VoteCadence::kActiveSteps, false, true, 2), 6) << "none came";
}

TEST(VoteCadenceTest, AfterTheLastChunkTheNextWindowIsWaitedFor) {
  constexpr int32_t kReportEvery = 8;  // windows end with steps 7, 15, 23
  const auto wants = [](int64_t step, const wire::Propose& switched) {
    return VoteCadence::WantsAfterSwitch(step, switched, kReportEvery);
  };
  EXPECT_EQ(wants(16, {.decided_last_step = 15}), 8) << "step 24";
  EXPECT_EQ(wants(18, {.chunk = 2, .num_chunks = 3, .decided_last_step = 15}), 6);
  EXPECT_EQ(wants(16, {.chunk = 0, .num_chunks = 3, .decided_last_step = 15}), 1);
  EXPECT_EQ(wants(18, {.decided_last_step = 7}), 1) << "a newer window may be decided on, step 19";
  EXPECT_EQ(wants(15, {.decided_last_step = 7}), 1) << "a window ends with this step";
  VoteCadence cadence(8, 0);
  cadence.Switched(17, {.chunk = 0, .num_chunks = 3});
  EXPECT_EQ(cadence.Wants(19, false, true, kReportEvery), 1) << "the next chunk is late";
  cadence.Switched(20, {.chunk = 2, .num_chunks = 3});
  EXPECT_EQ(cadence.Wants(20, false, true, kReportEvery), 4);
}

}  // namespace
}  // namespace eplb
