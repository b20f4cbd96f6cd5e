#include "client/session/channel.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

v1::GetLeaderResponse Answer(uint64_t term, uint32_t connected_ranks) {
  v1::GetLeaderResponse answer;
  answer.set_term(term);
  answer.set_connected_ranks(connected_ranks);
  return answer;
}

TEST(LeaderWatchTest, TheHigherTermLeadsWhereARankOfTheRunIsConnected) {
  EXPECT_TRUE(LeaderWatch::Leads(Answer(8, 1), 1, /*own_term=*/7, /*own=*/0));
  EXPECT_FALSE(LeaderWatch::Leads(Answer(8, 0), 1, 7, 0));
  EXPECT_FALSE(LeaderWatch::Leads(Answer(6, 3), 0, 7, 1));
  EXPECT_FALSE(LeaderWatch::Leads(Answer(~uint64_t{0}, 3), 0, 7, 1));
}

// Ranks of one list come to the same end: one of two leaves, and never both.
TEST(LeaderWatchTest, OfEqualTermsTheFirstOfTheListLeads) {
  EXPECT_TRUE(LeaderWatch::Leads(Answer(7, 1), /*position=*/0, 7, /*own=*/1));
  EXPECT_FALSE(LeaderWatch::Leads(Answer(7, 3), /*position=*/1, 7, /*own=*/0));
}

TEST(LeaderWatchTest, TheLaterElectionLeadsWithoutAConnectedRank) {
  v1::GetLeaderResponse answer = Answer(1, 0);
  EXPECT_FALSE(LeaderWatch::WasElectedLater(answer, 0));
  answer.set_election_term(8);
  EXPECT_TRUE(LeaderWatch::WasElectedLater(answer, 7));
  EXPECT_FALSE(LeaderWatch::WasElectedLater(answer, 8));
  answer.set_election_term(~uint64_t{0});
  EXPECT_FALSE(LeaderWatch::WasElectedLater(answer, 7));
}

TEST(LeaderWatchTest, NothingIsDueBeforeTheWelcomeOrWithoutAnotherDaemon) {
  wire::Hello hello;
  const auto later = LeaderWatch::Clock::now() + std::chrono::hours(1);
  LeaderWatch two({"a:1", "b:1"}, 0, {}, absl::Seconds(5), 1);
  EXPECT_FALSE(two.Due(later));
  two.Begin(hello, {.term = 7});
  EXPECT_FALSE(two.Due(LeaderWatch::Clock::now()));
  EXPECT_TRUE(two.Due(later));
  LeaderWatch alone({"a:1"}, 0, {}, absl::Seconds(5), 1);
  alone.Begin(hello, {.term = 7});
  EXPECT_FALSE(alone.Due(later));
}

}  // namespace
}  // namespace eplb
