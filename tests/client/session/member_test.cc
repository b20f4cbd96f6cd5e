#include "client/session/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/client/session/proposals.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using wire::FailedCode;
using wire::NackCode;

// Minimum over all ranks if each of `others` has these values.
std::vector<int64_t> MinOf(const VoteSnapshot& mine,
                           const std::vector<std::array<int64_t, 6>>& others) {
  std::vector<int64_t> minimum(mine.values.begin(), mine.values.end());
  for (const auto& values : others) {
    for (size_t i = 0; i < values.size(); ++i) minimum[i] = std::min(minimum[i], values[i]);
  }
  return minimum;
}

class MemberTest : public ::testing::Test {
 protected:
  static MemberOptions Options() {
    MemberOptions options;
    options.identity.job = "job";
    options.identity.rank = 1;
    options.identity.step = -1;
    options.migration.weight_bytes = 64;
    options.fits = [](const MigrationPlan&) { return absl::OkStatus(); };
    return options;
  }

  // The only answer to a message, as T.
  template <class T>
  T Answer(const wire::DownMessage& message) {
    const std::vector<wire::UpMessage> answers = member_.OnDown(message);
    EXPECT_EQ(answers.size(), 1U);
    return std::get<T>(answers.at(0));
  }

  VoteOutcome DecideAlone(const VoteSnapshot& snapshot) {
    return member_.Decide(snapshot.values, messages_).outcome;
  }

  const Placement base_ = Placement::Static(SmallTopology());
  const Placement target_ = Swapped(base_, 1, 0, 3);
  const wire::Propose propose_ = ProposeTo(Running(5, base_), target_, 8, 2);
  Member member_{Options(), Running(5, base_)};
  std::vector<wire::UpMessage> messages_;
};

// A rank that is PREPARED for version 8.
class PreparedMemberTest : public MemberTest {
 protected:
  PreparedMemberTest() { Answer<wire::Prepared>(propose_); }
};

TEST_F(MemberTest, HelloTellsWhatRuns) {
  const wire::Hello hello = member_.MakeHello();
  EXPECT_EQ(hello.job, "job");
  EXPECT_EQ(hello.rank, 1);
  EXPECT_EQ(hello.running_version, 5);
  EXPECT_EQ(hello.running_digest, DigestOf(base_));
  EXPECT_EQ(hello.prepared_version, 0);
  EXPECT_EQ(hello.highest_version, 5);
  EXPECT_EQ(hello.highest_term, 0);
  EXPECT_EQ(hello.step, 0);
}

TEST_F(MemberTest, GoodProposalMakesItReady) {
  const auto ready = Answer<wire::Prepared>(propose_);
  EXPECT_EQ(ready.version, 8);
  EXPECT_EQ(ready.digest, DigestOf(target_));
  const std::vector<LayerId> layers = {LayerId{1}};
  EXPECT_EQ(ready.plan_hash,
            PlanMigration(base_, target_, layers, Options().migration).value().hash);
  member_.OnStep(17);
  const wire::Hello hello = member_.MakeHello();
  EXPECT_EQ(hello.prepared_version, 8);
  EXPECT_EQ(hello.running_version, 5);
  EXPECT_EQ(hello.highest_version, 8);
  EXPECT_EQ(hello.highest_term, 2);
  EXPECT_EQ(hello.step, 17);
}

TEST_F(MemberTest, SameProposalTwiceIsReadyTwice) {
  EXPECT_EQ(Answer<wire::Prepared>(propose_).plan_hash, Answer<wire::Prepared>(propose_).plan_hash);
  EXPECT_EQ(member_.prepared()->propose.version, 8);
}

TEST_F(PreparedMemberTest, ReadyVersionWithAnotherDigestIsStale) {
  const wire::Propose other = ProposeTo(Running(5, base_), Swapped(base_, 2, 0, 3), 8, 2);
  EXPECT_EQ(Answer<wire::Nack>(other).code, NackCode::kStaleVersion);
  EXPECT_EQ(member_.prepared()->propose.digest, propose_.digest);
}

TEST_F(MemberTest, LowerTermIsRefusedAndChangesNothing) {
  EXPECT_THAT(member_.OnDown(wire::Welcome{.term = 3}), IsEmpty());
  const auto nack = Answer<wire::Nack>(propose_);
  EXPECT_EQ(nack.code, NackCode::kStaleTerm);
  EXPECT_EQ(nack.detail, "term 2, this rank has seen 3");
  EXPECT_EQ(member_.MakeHello().highest_version, 5);
  EXPECT_EQ(member_.prepared(), nullptr);
}

TEST_F(MemberTest, VersionSeenBeforeIsRefused) {
  wire::Propose propose = propose_;
  propose.version = 5;
  EXPECT_EQ(Answer<wire::Nack>(propose).code, NackCode::kStaleVersion);
  propose.version = 9;
  propose.base_version = 4;
  EXPECT_EQ(Answer<wire::Nack>(propose).code, NackCode::kWrongBase);
  EXPECT_EQ(Answer<wire::Nack>(propose_).code, NackCode::kStaleVersion);  // 8, and 9 was seen
}

TEST_F(MemberTest, AnotherBaseIsRefused) {
  wire::Propose version = propose_;
  version.base_version = 4;
  EXPECT_EQ(Answer<wire::Nack>(version).code, NackCode::kWrongBase);
  wire::Propose digest = propose_;
  digest.version = 9;
  digest.base_digest = DigestOf(target_);
  EXPECT_EQ(Answer<wire::Nack>(digest).code, NackCode::kWrongBase);
}

TEST_F(MemberTest, LayersThatMakeNoPlacementAreInvalid) {
  wire::Propose propose = propose_;
  propose.layers.front().physical_to_logical = {0, 0, 1, 2};
  EXPECT_THAT(Answer<wire::Nack>(propose).detail, HasSubstr("expert 3"));
  ++propose.version;
  propose.layers.clear();
  EXPECT_EQ(Answer<wire::Nack>(propose).code, NackCode::kInvalid);
  wire::Propose falling =
      ProposeTo(Running(5, base_), Swapped(target_, 2, 0, 3), propose.version + 1, 2);
  std::swap(falling.layers.front(), falling.layers.back());
  EXPECT_EQ(Answer<wire::Nack>(falling).code, NackCode::kInvalid);
}

TEST_F(MemberTest, DigestThatTheLayersDoNotGiveIsRefused) {
  wire::Propose propose = propose_;
  propose.digest.bytes[31] ^= 1;
  const auto nack = Answer<wire::Nack>(propose);
  EXPECT_EQ(nack.code, NackCode::kWrongDigest);
  EXPECT_THAT(nack.detail, HasSubstr(DigestOf(target_).Hex()));
  EXPECT_EQ(member_.prepared(), nullptr);
}

TEST_F(MemberTest, PlanThatDoesNotFitIsRefused) {
  MemberOptions options = Options();
  options.fits = [](const MigrationPlan&) { return absl::ResourceExhaustedError("64 bytes"); };
  Member member(options, Running(5, base_));
  const std::vector<wire::UpMessage> answer = member.OnDown(propose_);
  EXPECT_EQ(std::get<wire::Nack>(answer.front()).code, NackCode::kStagingTooSmall);
  EXPECT_EQ(std::get<wire::Nack>(answer.front()).detail, "64 bytes");
}

TEST_F(PreparedMemberTest, SecondProposalFindsItBusy) {
  wire::Propose second = propose_;
  second.version = 9;
  EXPECT_EQ(Answer<wire::Nack>(second).detail, "version 8 is PREPARED");
  EXPECT_EQ(member_.prepared()->propose.version, 8);
  EXPECT_EQ(member_.MakeHello().highest_version, 9);
}

TEST_F(MemberTest, CancelOfReadyProposalForgetsIt) {
  member_.OnStep(3);
  Answer<wire::Prepared>(propose_);
  const auto failed = Answer<wire::Failed>(wire::Cancel{.version = 8, .reason = "too late"});
  EXPECT_EQ(failed.version, 8);
  EXPECT_EQ(failed.code, FailedCode::kCancelled);
  EXPECT_EQ(failed.detail, "too late");
  EXPECT_EQ(failed.step, 3);
  EXPECT_EQ(member_.Enter().values[0], 0);
}

TEST_F(PreparedMemberTest, CancelledVersionNeverComesBack) {
  Answer<wire::Failed>(wire::Cancel{.version = 8});
  EXPECT_EQ(Answer<wire::Nack>(propose_).code, NackCode::kStaleVersion);
}

TEST_F(MemberTest, CancelOfUnknownProposalIsSuperseded) {
  EXPECT_EQ(Answer<wire::Failed>(wire::Cancel{.version = 7}).code, FailedCode::kSuperseded);
}

TEST_F(PreparedMemberTest, CancelInsideAVoteWaitsForItsResult) {
  const VoteSnapshot snapshot = member_.Enter();
  EXPECT_THAT(member_.OnDown(wire::Cancel{.version = 8, .reason = "late"}), IsEmpty());
  VoteSnapshot other = snapshot;
  other.values[0] = other.values[1] = other.values[2] = other.values[3] = 0;
  const VoteDecision decision = member_.Decide(MinOf(snapshot, {other.values}), messages_);
  EXPECT_EQ(decision.outcome, VoteOutcome::kNothing);
  ASSERT_EQ(messages_.size(), 1U);
  EXPECT_EQ(std::get<wire::Failed>(messages_.front()).code, FailedCode::kCancelled);
  EXPECT_EQ(member_.prepared(), nullptr);
}

TEST_F(PreparedMemberTest, CancelInsideAVoteThatAgreesLosesToTheVote) {
  const VoteSnapshot snapshot = member_.Enter();
  EXPECT_THAT(member_.OnDown(wire::Cancel{.version = 8}), IsEmpty());
  EXPECT_EQ(DecideAlone(snapshot), VoteOutcome::kRunChunk);
  EXPECT_THAT(member_.OnDown(wire::Cancel{.version = 8}), IsEmpty());
  EXPECT_THAT(messages_, IsEmpty());
  EXPECT_EQ(std::get<wire::Applied>(member_.OnApplied(128, 0.25)).version, 8);
  EXPECT_EQ(member_.running().version, 8);
}

TEST_F(PreparedMemberTest, AnotherTransportIsToldWithEveryAppliedAndHelloFromThenOn) {
  ASSERT_EQ(DecideAlone(member_.Enter()), VoteOutcome::kRunChunk);
  member_.SetTransport("host", "NCCL failed");
  const auto applied = std::get<wire::Applied>(member_.OnApplied(128, 0.25));
  EXPECT_EQ(applied.transport, "host");
  EXPECT_EQ(applied.fallback_reason, "NCCL failed");
  EXPECT_EQ(member_.MakeHello().transport.name, "host");
  EXPECT_EQ(member_.MakeHello().transport.fallback_reason, "NCCL failed");
}

TEST_F(PreparedMemberTest, CancelWhileRowsMoveIsAnsweredByTheSecondVote) {
  const VoteSnapshot snapshot = member_.Enter();
  ASSERT_EQ(DecideAlone(snapshot), VoteOutcome::kRunChunk);
  EXPECT_THAT(member_.OnDown(wire::Cancel{.version = 8}), IsEmpty());
  EXPECT_EQ(std::get<wire::Failed>(member_.OnDropped("rank 3 lost a row")).code,
            FailedCode::kTransfer);
}

TEST_F(PreparedMemberTest, CancelOfAppliedVersionSaysAppliedAgain) {
  member_.OnStep(15);
  ASSERT_EQ(DecideAlone(member_.Enter()), VoteOutcome::kRunChunk);
  member_.OnApplied(128, 0.25);
  member_.OnStep(16);
  const auto applied = Answer<wire::Applied>(wire::Cancel{.version = 8});
  EXPECT_EQ(applied.version, 8);
  EXPECT_EQ(applied.digest, DigestOf(target_));
  EXPECT_EQ(applied.step, 15);
  EXPECT_EQ(applied.received_bytes, 128);
  EXPECT_EQ(applied.pause_seconds, 0.25);
  EXPECT_EQ(applied.transport, "") << "it is the one that Hello named";
}

TEST_F(MemberTest, BallotCarriesVersionAndDigestsWithBothSigns) {
  const int64_t running = DigestOf(base_).VoteBits();
  const int64_t target = DigestOf(target_).VoteBits();
  const auto idle = member_.Enter().values;
  EXPECT_THAT(idle, ElementsAre(0, 0, 0, 0, running, -running));
  ASSERT_EQ(member_.Decide(idle, messages_).outcome, VoteOutcome::kNothing);
  Answer<wire::Prepared>(propose_);
  EXPECT_THAT(member_.Enter().values, ElementsAre(8, -8, target, -target, running, -running));
}

TEST_F(MemberTest, ReadyDuringAVoteCountsInTheNextOne) {
  const VoteSnapshot first = member_.Enter();
  Answer<wire::Prepared>(propose_);
  // The others are PREPARED for it already: this rank is not in this vote.
  VoteSnapshot other = first;
  const int64_t bits = DigestOf(target_).VoteBits();
  other.values = {8, -8, bits, -bits, first.values[4], first.values[5]};
  EXPECT_EQ(member_.Decide(MinOf(first, {other.values}), messages_).outcome, VoteOutcome::kNothing);
  EXPECT_EQ(DecideAlone(member_.Enter()), VoteOutcome::kRunChunk);
}

TEST_F(MemberTest, CancelDuringAVoteThatItIsNotInIsAnsweredAtOnce) {
  member_.Enter();
  Answer<wire::Prepared>(propose_);
  EXPECT_EQ(Answer<wire::Failed>(wire::Cancel{.version = 8}).code, FailedCode::kCancelled);
}

TEST_F(PreparedMemberTest, VoteRunsTheFrozenProposalWhateverArrives) {
  const VoteSnapshot snapshot = member_.Enter();
  wire::Propose second = propose_;
  second.version = 9;
  second.term = 7;
  EXPECT_EQ(Answer<wire::Nack>(second).detail, "version 8 is being voted on");
  EXPECT_THAT(member_.OnDown(wire::Welcome{.term = 9}), IsEmpty());
  const VoteDecision decision = member_.Decide(snapshot.values, messages_);
  EXPECT_EQ(decision.outcome, VoteOutcome::kRunChunk);
  EXPECT_EQ(decision.proposal, snapshot.proposal);
  EXPECT_EQ(decision.proposal->propose.version, 8);
}

TEST_F(PreparedMemberTest, OtherVersionOrDigestElsewhereRunsNothing) {
  for (const size_t i : {0U, 2U}) {
    for (const int64_t difference : {-1, 1}) {
      const VoteSnapshot snapshot = member_.Enter();
      VoteSnapshot other = snapshot;
      other.values[i] += difference;
      other.values[i + 1] -= difference;
      EXPECT_EQ(member_.Decide(MinOf(snapshot, {other.values}), messages_).outcome,
                VoteOutcome::kNothing);
    }
  }
  EXPECT_EQ(member_.prepared()->propose.version, 8);  // the next vote may agree
}

TEST_F(MemberTest, OtherRunningDigestElsewhereIsDivergence) {
  for (const int64_t difference : {-1, 1}) {
    const VoteSnapshot snapshot = member_.Enter();
    VoteSnapshot other = snapshot;
    other.values[4] += difference;
    other.values[5] -= difference;
    EXPECT_EQ(member_.Decide(MinOf(snapshot, {other.values}), messages_).outcome,
              VoteOutcome::kDiverged);
  }
}

TEST_F(PreparedMemberTest, AppliedProposalRunsAndTakesTheNextOne) {
  ASSERT_EQ(DecideAlone(member_.Enter()), VoteOutcome::kRunChunk);
  member_.OnApplied(0, 0);
  EXPECT_EQ(member_.MakeHello().running_digest, DigestOf(target_));
  EXPECT_EQ(member_.MakeHello().prepared_version, 0);
  EXPECT_EQ(Answer<wire::Prepared>(ProposeTo(Running(8, target_), base_, 9, 2)).version, 9);
}

TEST_F(PreparedMemberTest, DroppedChunkLeavesTheOldPlacement) {
  member_.OnStep(7);
  ASSERT_EQ(DecideAlone(member_.Enter()), VoteOutcome::kRunChunk);
  const auto failed = std::get<wire::Failed>(member_.OnDropped("checksum differs"));
  EXPECT_EQ(failed.detail, "checksum differs");
  EXPECT_EQ(failed.step, 7);
  EXPECT_EQ(member_.running().version, 5);
  EXPECT_EQ(member_.prepared(), nullptr);
}

TEST_F(PreparedMemberTest, EndedRankSaysGoodbyeWithTheMissingRanksAndNothingMore) {
  member_.Enter();
  const std::vector<RankId> missing = {RankId{2}, RankId{5}};
  const auto goodbye = std::get<wire::Goodbye>(member_.OnEnded("vote: ranks 2, 5", missing));
  EXPECT_TRUE(goodbye.failed);
  EXPECT_EQ(goodbye.reason, "vote: ranks 2, 5");
  EXPECT_THAT(goodbye.missing_ranks, ElementsAre(2, 5));
  EXPECT_THAT(member_.OnDown(propose_), IsEmpty());
  EXPECT_THAT(member_.OnDown(wire::Cancel{.version = 8}), IsEmpty());
  EXPECT_EQ(member_.MakeHello().prepared_version, 0);
}

TEST_F(MemberTest, NeedPlacementIsAnsweredWithWhatRuns) {
  const auto body = Answer<wire::PlacementBody>(wire::NeedPlacement{.digest = DigestOf(base_)});
  EXPECT_EQ(body.version, 5);
  EXPECT_EQ(body.digest, DigestOf(base_));
  EXPECT_EQ(body.placement, base_);
}

TEST_F(MemberTest, NeedPlacementOfAnotherDigestIsNotAnswered) {
  EXPECT_THAT(member_.OnDown(wire::NeedPlacement{.digest = DigestOf(target_)}), IsEmpty());
}

}  // namespace
}  // namespace eplb
