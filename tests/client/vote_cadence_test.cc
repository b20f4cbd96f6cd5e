#include "client/vote_cadence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace eplb {
namespace {

using ::testing::ElementsAre;

// Returns the steps before `end` with a vote, of which those in `expected` report that a change is
// expected.
std::vector<int64_t> Votes(VoteCadence& cadence, int64_t begin, int64_t end,
                           const std::vector<int64_t>& expected) {
  std::vector<int64_t> votes;
  for (int64_t step = begin; step < end; ++step) {
    if (!cadence.VotesAt(step)) continue;
    votes.push_back(step);
    cadence.Voted(step, std::ranges::count(expected, step) > 0 ? -1 : 0);
  }
  return votes;
}

TEST(VoteCadenceTest, TheFirstStepVotesAndThenMultiplesOfVoteEvery) {
  VoteCadence cadence(8, 100);
  EXPECT_THAT(Votes(cadence, 100, 130, {}), ElementsAre(100, 103, 111, 119, 127));
}

TEST(VoteCadenceTest, WhileARankExpectsAChangeEachStepVotes) {
  VoteCadence cadence(8, 0);
  EXPECT_THAT(Votes(cadence, 0, 20, {0, 1, 15, 16}), ElementsAre(0, 1, 2, 7, 15, 16, 17));
}

TEST(VoteCadenceTest, AJobThatStagesAheadVotesAtMultiplesAlone) {
  VoteCadence cadence(4, 0);
  cadence.SetAhead(true);
  EXPECT_THAT(Votes(cadence, 0, 12, {3}), ElementsAre(3, 7, 11));
}

TEST(VoteCadenceTest, ARankExpectsAChangeAtTheStartWithAProposalAndAfterASwitch) {
  VoteCadence cadence(8, 100);
  EXPECT_EQ(cadence.Expects(100, /*knows_proposal=*/false, /*waits=*/true), -1);
  EXPECT_EQ(cadence.Expects(100, false, /*waits=*/false), 0) << "no daemon";
  EXPECT_EQ(cadence.Expects(100 + VoteCadence::kActiveSteps, false, true), 0);
  EXPECT_EQ(cadence.Expects(200, true, true), -1);
  EXPECT_EQ(cadence.Expects(199 + VoteCadence::kMostVotes, true, true), -1);
  EXPECT_EQ(cadence.Expects(200 + VoteCadence::kMostVotes, true, true), 0) << "no daemon ends it";
  cadence.Switched(200);
  EXPECT_EQ(cadence.Expects(200 + VoteCadence::kActiveSteps, false, true), -1);
  EXPECT_EQ(cadence.Expects(201 + VoteCadence::kActiveSteps, false, true), 0) << "none came";
}

}  // namespace
}  // namespace eplb
