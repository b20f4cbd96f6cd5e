#include "server/rpc/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Time kRendezvousStart = absl::UnixEpoch();

class RendezvousTest : public ::testing::Test {
 protected:
  explicit RendezvousTest(absl::Duration settle = absl::ZeroDuration())
      : rendezvous_({.deadline = absl::Seconds(60), .settle = settle, .max_bytes = 3 << 20}) {}

  // Call `call` of a rank; its answers are kept under that number.
  void Join(int call, Rendezvous::Member member, absl::Time now = kRendezvousStart) {
    if (member.job.empty()) member.job = "job";
    if (member.launch_id.empty()) member.launch_id = "run";
    rendezvous_.Join(
        std::move(member), &callers_[call],
        [this, call](const absl::StatusOr<Rendezvous::Result>& result) {
          answers_[call].push_back(result);
        },
        now);
  }
  static Rendezvous::Member MemberOf(int32_t rank, int32_t world_size, uint64_t nonce = 1) {
    return {.rank = rank,
            .world_size = world_size,
            .nonce = nonce,
            .blob = absl::StrCat("blob", rank, "/", nonce)};
  }
  // Returns the member in all-gather `number` under a token.
  static Rendezvous::Member Later(Rendezvous::Member member, const std::string& token,
                                  int32_t number = 1) {
    member.token = token;
    member.number = number;
    return member;
  }
  std::vector<std::string> BlobsOf(int call) {
    return StatusOf(call).ok() ? (*answers_[call][0])->blobs : std::vector<std::string>();
  }
  std::string TokenOf(int call) {
    return StatusOf(call).ok() ? (*answers_[call][0])->token : "none";
  }
  absl::Status StatusOf(int call) {
    EXPECT_EQ(answers_[call].size(), 1) << "call " << call;
    return answers_[call].empty() ? absl::UnknownError("no answer") : answers_[call][0].status();
  }

  Rendezvous rendezvous_;
  char callers_[32] = {};
  std::map<int, std::vector<absl::StatusOr<Rendezvous::Result>>> answers_;
};

TEST_F(RendezvousTest, EverybodyGetsAllBlobsInRankOrder) {
  Join(0, MemberOf(2, 3));
  Join(1, MemberOf(0, 3));
  EXPECT_TRUE(answers_.empty());
  Join(2, MemberOf(1, 3));
  for (int call = 0; call < 3; ++call) {
    ASSERT_TRUE(StatusOf(call).ok());
    EXPECT_THAT(BlobsOf(call), ElementsAre("blob0/1", "blob1/1", "blob2/1"));
  }
}

TEST_F(RendezvousTest, TheDeadlineNamesTheMissingRanks) {
  Join(0, MemberOf(0, 3));
  rendezvous_.Expire(kRendezvousStart + absl::Seconds(59));
  EXPECT_TRUE(answers_.empty());
  Join(1, MemberOf(2, 3), kRendezvousStart + absl::Seconds(59));
  rendezvous_.Expire(kRendezvousStart + absl::Seconds(60));
  EXPECT_EQ(StatusOf(0),
            absl::DeadlineExceededError("rank 1 of 3 did not call all-gather 0 of job \"job\", run "
                                        "\"run\", within 1m; ranks meet under one launch id "
                                        "(EPLB_LAUNCH_ID, else the launcher's)"));
  EXPECT_EQ(StatusOf(1), StatusOf(0));
}

TEST_F(RendezvousTest, TheMostImpatientRankEndsIt) {
  Join(0, MemberOf(0, 3));
  Rendezvous::Member member = MemberOf(2, 3);
  member.patience = absl::Seconds(5);
  Join(1, std::move(member), kRendezvousStart + absl::Seconds(1));
  rendezvous_.Expire(kRendezvousStart + absl::Seconds(5));
  EXPECT_TRUE(answers_.empty());
  rendezvous_.Expire(kRendezvousStart + absl::Seconds(6));
  EXPECT_THAT(std::string(StatusOf(1).message()), HasSubstr("within 6s"));
  EXPECT_EQ(StatusOf(0), StatusOf(1));
}

TEST_F(RendezvousTest, ManyMissingRanksAreCounted) {
  Join(0, MemberOf(0, 1000));
  rendezvous_.Expire(kRendezvousStart + absl::Seconds(60));
  EXPECT_THAT(std::string(StatusOf(0).message()), HasSubstr("ranks 1, 2, 3, "));
  EXPECT_THAT(std::string(StatusOf(0).message()), HasSubstr("16 and 983 more of 1000"));
}

TEST_F(RendezvousTest, ARankThatComesAgainReplacesItsEarlierCall) {
  Join(0, MemberOf(0, 2));
  Join(1, MemberOf(0, 2));
  EXPECT_EQ(StatusOf(0), absl::AbortedError("rank 0 called again, this call is replaced"));
  Join(2, MemberOf(1, 2));
  EXPECT_THAT(BlobsOf(1), ElementsAre("blob0/1", "blob1/1"));
}

const absl::Status kShared = absl::FailedPreconditionError(
    "two runs share the launch id run: rank 0 has two processes, or a run with this id has just "
    "ended; give each run an EPLB_LAUNCH_ID of its own (torchrun: --rdzv-id)");

TEST_F(RendezvousTest, TwoRunsOfOneIdAreEndedOnAllTheirRanks) {
  Join(0, MemberOf(0, 3, 10));
  Join(1, MemberOf(2, 3, 11));  // rank of either run
  Join(2, MemberOf(0, 3, 20), kRendezvousStart + absl::Seconds(30));
  for (int call = 0; call < 3; ++call) EXPECT_EQ(StatusOf(call), kShared) << call;
  Join(3, MemberOf(1, 3, 12), kRendezvousStart + absl::Seconds(34));
  EXPECT_EQ(StatusOf(3), kShared);
}

// A rendezvous that waits for a second after the last rank.
class SettlingRendezvousTest : public RendezvousTest {
 protected:
  SettlingRendezvousTest() : RendezvousTest(absl::Seconds(1)) {}
};

TEST_F(SettlingRendezvousTest, ARankThatComesAgainBeginsTheMomentAnew) {
  Join(0, MemberOf(0, 2, 10));
  Join(1, MemberOf(1, 2, 11));
  ASSERT_TRUE(rendezvous_.Leave(&callers_[1]));
  Join(2, MemberOf(1, 2, 11), kRendezvousStart + absl::Seconds(3));
  rendezvous_.Expire(kRendezvousStart + absl::Milliseconds(3999));
  EXPECT_TRUE(answers_.empty());
  rendezvous_.Expire(kRendezvousStart + absl::Seconds(4));
  EXPECT_TRUE(StatusOf(0).ok() && StatusOf(2).ok());
}

// Ranks of two launches make up a whole one before the others come.
TEST_F(SettlingRendezvousTest, TheOtherRunIsStillFoundBeforeAnybodyMet) {
  Join(0, MemberOf(0, 2, 10));
  Join(1, MemberOf(1, 2, 21));
  rendezvous_.Expire(kRendezvousStart + absl::Milliseconds(999));
  EXPECT_TRUE(answers_.empty());
  Join(2, MemberOf(0, 2, 20), kRendezvousStart + absl::Milliseconds(999));
  for (int call = 0; call < 3; ++call) EXPECT_EQ(StatusOf(call), kShared) << call;
  Join(3, MemberOf(0, 2, 30), kRendezvousStart + absl::Seconds(8));
  Join(4, MemberOf(1, 2, 31), kRendezvousStart + absl::Seconds(9));
  rendezvous_.Expire(kRendezvousStart + absl::Seconds(10));
  EXPECT_TRUE(StatusOf(3).ok() && StatusOf(4).ok());
}

TEST_F(RendezvousTest, RunsOfTwoIdsNeverMeet) {
  for (const char* id : {"A", "B"}) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      Rendezvous::Member member = MemberOf(rank, 2);
      member.launch_id = id;
      member.blob = absl::StrCat(id, rank);
      Join((id[0] - 'A') * 2 + rank, std::move(member));
    }
  }
  EXPECT_THAT(BlobsOf(0), ElementsAre("A0", "A1"));
  EXPECT_THAT(BlobsOf(3), ElementsAre("B0", "B1"));
}

// It may be that the ranks that met were of two runs: what came afterwards tells.
TEST_F(RendezvousTest, ASecondRunRightBehindTheFirstEndsTheLaterExchangesToo) {
  Join(0, MemberOf(0, 2, 10));
  Join(1, MemberOf(1, 2, 21));
  const std::string token = TokenOf(0);
  Join(2, Later(MemberOf(0, 2, 10), token), kRendezvousStart + absl::Seconds(3));
  Join(3, MemberOf(0, 2, 20), kRendezvousStart + absl::Seconds(7));
  EXPECT_EQ(StatusOf(3), kShared);
  EXPECT_EQ(StatusOf(2), kShared);
  Join(4, Later(MemberOf(1, 2, 21), token), kRendezvousStart + absl::Seconds(40));
  EXPECT_EQ(StatusOf(4), kShared);
}

TEST_F(RendezvousTest, ALaunchIdIsFreeOnceItsStartWasQuietForFiveSeconds) {
  Join(0, MemberOf(0, 2, 10));
  Join(1, MemberOf(1, 2, 11));
  const std::string token = TokenOf(0);
  Join(2, MemberOf(0, 2, 20), kRendezvousStart + Rendezvous::kQuiet);
  EXPECT_TRUE(answers_[2].empty());
  Join(3, MemberOf(1, 2, 21), kRendezvousStart + Rendezvous::kQuiet);
  EXPECT_THAT(BlobsOf(2), ElementsAre("blob0/20", "blob1/21"));
  EXPECT_NE(TokenOf(3), token);
  // The all-gathers that the first run still needs stay its own.
  Join(4, Later(MemberOf(0, 2, 10), token), kRendezvousStart + absl::Seconds(20));
  Join(5, Later(MemberOf(1, 2, 21), TokenOf(3)), kRendezvousStart + absl::Seconds(20));
  Join(6, Later(MemberOf(1, 2, 11), token), kRendezvousStart + absl::Seconds(20));
  EXPECT_THAT(BlobsOf(4), ElementsAre("blob0/10", "blob1/11"));
  EXPECT_TRUE(answers_[5].empty());
}

TEST_F(RendezvousTest, ARefusedLaunchIdIsFreeAfterFiveSeconds) {
  Join(0, MemberOf(0, 1, 10));
  Join(1, MemberOf(0, 1, 20), kRendezvousStart + absl::Seconds(1));
  EXPECT_EQ(StatusOf(1), kShared);
  Join(2, MemberOf(0, 1, 30), kRendezvousStart + absl::Seconds(5));
  EXPECT_EQ(StatusOf(2), kShared);
  Join(3, MemberOf(0, 1, 40), kRendezvousStart + absl::Seconds(6));
  EXPECT_THAT(BlobsOf(3), ElementsAre("blob0/40"));
}

TEST_F(RendezvousTest, UnderATokenOnlyItsProcessesMeet) {
  Join(0, MemberOf(0, 2, 10));
  Join(1, MemberOf(1, 2, 11));
  const std::string token = TokenOf(0);
  rendezvous_.Expire(kRendezvousStart + absl::Seconds(60));
  const absl::Time later = kRendezvousStart + absl::Seconds(100);
  Join(2, Later(MemberOf(0, 2, 20), token), later);
  Join(3, Later(MemberOf(1, 2, 11), token), later);
  EXPECT_THAT(std::string(StatusOf(2).message()),
              HasSubstr("the processes of all-gather 1 of run run are not those that began"));
  EXPECT_EQ(StatusOf(3), StatusOf(2));
}

// Ranks of a start whose first all-gather ended at an earlier daemon, with one that missed its end.
TEST_F(RendezvousTest, AnotherRunDoesNotTakeThePlaceOfWhatAnEarlierDaemonAnswered) {
  const std::string token = Rendezvous::TokenOf("run", {{0, 10}, {1, 11}});
  Join(0, Later(MemberOf(0, 2, 10), token));
  Join(1, MemberOf(0, 2, 20));
  EXPECT_EQ(StatusOf(1), kShared);
  EXPECT_EQ(StatusOf(0), kShared);
}

// Ranks that give their blobs in some order, lose answers, and speak to a daemon that restarts.
class RestartedStart {
 public:
  static constexpr int32_t kRanks = 3;
  static constexpr int32_t kAllGathers = 3;
  explicit RestartedStart(uint32_t seed) : random_(seed) {}

  // Every rank's answers to all all-gathers.
  std::vector<std::vector<Rendezvous::Result>> Run() {
    for (int turn = 0; turn < 10000 && !AllDone(); ++turn) Turn();
    std::vector<std::vector<Rendezvous::Result>> answers;
    for (const Rank& rank : ranks_) answers.push_back(rank.answers);
    return answers;
  }

 private:
  struct Rank {
    bool calls = false;
    std::optional<Rendezvous::Result> arrives;  // on its way
    std::vector<Rendezvous::Result> answers;
  };

  void Turn() {
    const uint32_t choice = random_() % 8;
    Rank& rank = ranks_[random_() % kRanks];
    const auto number = static_cast<int32_t>(rank.answers.size());
    if (choice == 0 &&
        !AnyDone()) {  // the answer to the last all-gather is the one that may be lost
      for (Rank& each : ranks_) each.calls = false;
      for (Rank& each : ranks_) each.arrives.reset();
      rendezvous_ = std::make_unique<Rendezvous>(Rendezvous::Limits{.settle = {}});
    } else if (rank.arrives.has_value()) {
      rank.answers.push_back(*std::exchange(rank.arrives, std::nullopt));
      rank.calls = false;
    } else if (!rank.calls && number < kAllGathers) {
      rank.calls = true;
      Join(rank, static_cast<int32_t>(&rank - ranks_), number);
    }
  }

  static std::string Blob(int32_t rank, int32_t number) {
    return absl::StrCat("rank ", rank, " all-gather ", number);
  }

  void Join(Rank& rank, int32_t r, int32_t number) {
    rendezvous_->Join(
        {.job = "job",
         .launch_id = "run",
         .token = number == 0 ? "" : rank.answers[0]->token,
         .number = number,
         .rank = r,
         .world_size = kRanks,
         .nonce = static_cast<uint64_t>(r) + 100,
         .blob = Blob(r, number),
         .previous = number == 0 ? "" : Blob(r, number - 1)},
        &rank,
        [&rank](const absl::StatusOr<Rendezvous::Result>& result) {
          ASSERT_TRUE(result.ok()) << result.status();
          rank.arrives = *result;
        },
        kRendezvousStart);
  }

  bool AllDone() const {
    return std::ranges::all_of(ranks_,
                               [](const Rank& rank) { return rank.answers.size() == kAllGathers; });
  }
  bool AnyDone() const {
    return std::ranges::any_of(ranks_,
                               [](const Rank& rank) { return rank.answers.size() == kAllGathers; });
  }

  std::mt19937 random_;
  Rank ranks_[kRanks];
  std::unique_ptr<Rendezvous> rendezvous_ =
      std::make_unique<Rendezvous>(Rendezvous::Limits{.settle = {}});
};

TEST(RestartedStartTest, ADaemonThatRestartsAtAnyMomentOfAStartLosesNothing) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    const auto answers = RestartedStart(seed).Run();
    for (const std::vector<Rendezvous::Result>& rank : answers) {
      ASSERT_EQ(rank.size(), 3) << "seed " << seed;
      for (size_t number = 0; number < rank.size(); ++number) {
        ASSERT_THAT(rank[number]->blobs, ElementsAre(absl::StrCat("rank 0 all-gather ", number),
                                                     absl::StrCat("rank 1 all-gather ", number),
                                                     absl::StrCat("rank 2 all-gather ", number)))
            << "seed " << seed;
        ASSERT_EQ(rank[number]->token, answers[0][0]->token) << "seed " << seed;
      }
    }
  }
}

TEST_F(RendezvousTest, ARankThatLostTheAnswerGetsItAgain) {
  Join(0, MemberOf(0, 2));
  Join(1, MemberOf(1, 2));
  Join(2, MemberOf(0, 2));
  ASSERT_TRUE(StatusOf(2).ok());
  EXPECT_THAT(BlobsOf(2), ElementsAre("blob0/1", "blob1/1"));
}

TEST_F(RendezvousTest, ARankThatLeftIsMissingAndIsNotCalled) {
  Join(0, MemberOf(0, 2));
  EXPECT_TRUE(rendezvous_.Leave(&callers_[0]));
  EXPECT_FALSE(rendezvous_.Leave(&callers_[0]));
  Join(1, MemberOf(0, 3));  // no rank waits any more, so another world size is fine
  EXPECT_TRUE(answers_[0].empty());
  EXPECT_TRUE(answers_[1].empty());
}

TEST_F(RendezvousTest, AnsweredCallsCannotLeave) {
  Join(0, MemberOf(0, 1));
  ASSERT_TRUE(StatusOf(0).ok());
  EXPECT_FALSE(rendezvous_.Leave(&callers_[0]));
}

TEST_F(RendezvousTest, MembersThatMakeNoSenseAreRefused) {
  Join(0, MemberOf(0, 0));
  Join(1, MemberOf(2, 2));
  Join(2, MemberOf(-1, 2));
  Join(3, MemberOf(0, 1 << 30));
  Join(4, {.job = std::string(129, 'x'), .rank = 0, .world_size = 1});
  Join(5, {.rank = 0, .world_size = 1, .blob = std::string((1 << 20) + 1, 'x')});
  Join(6, {.number = -1, .rank = 0, .world_size = 1});
  Join(7, {.token = "early", .rank = 0, .world_size = 1});
  Join(8, {.number = 1, .rank = 0, .world_size = 1});
  Join(9, {.launch_id = "two\nlines", .rank = 0, .world_size = 1});
  for (int call = 0; call < 10; ++call) {
    EXPECT_EQ(StatusOf(call).code(), absl::StatusCode::kInvalidArgument) << call;
  }
}

TEST_F(RendezvousTest, WithoutALaunchIdARankIsToldWhatToSet) {
  absl::Status status;
  rendezvous_.Join(
      {.job = "job", .rank = 0, .world_size = 2}, this,
      [&](const absl::StatusOr<Rendezvous::Result>& result) { status = result.status(); },
      kRendezvousStart);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("set EPLB_LAUNCH_ID"));
}

TEST_F(RendezvousTest, AnotherWorldSizeIsRefusedByNumbers) {
  Join(0, MemberOf(0, 2));
  Join(1, MemberOf(1, 3));
  EXPECT_EQ(StatusOf(1),
            absl::InvalidArgumentError("rank 1 has world_size 3, the ranks before it have 2"));
  EXPECT_TRUE(answers_[0].empty());
}

TEST_F(RendezvousTest, BytesAreBoundedAndGivenBack) {
  const std::string megabyte(1 << 20, 'x');
  for (int call = 0; call < 4; ++call) {
    Join(call, {.job = absl::StrCat("job", call), .rank = 0, .world_size = 2, .blob = megabyte});
  }
  EXPECT_EQ(StatusOf(3).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(rendezvous_.Leave(&callers_[0]));
  Join(4, {.job = "another", .rank = 0, .world_size = 2, .blob = megabyte});
  EXPECT_TRUE(answers_[4].empty());
  rendezvous_.Expire(kRendezvousStart + absl::Hours(1));
  for (int call = 5; call < 8; ++call) {
    Join(call, {.job = absl::StrCat("job", call), .rank = 0, .world_size = 2, .blob = megabyte});
    EXPECT_TRUE(answers_[call].empty());
  }
}

TEST_F(RendezvousTest, DrainEndsEveryWait) {
  Join(0, MemberOf(0, 2));
  rendezvous_.FailAll(absl::UnavailableError("drain"));
  EXPECT_EQ(StatusOf(0).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace eplb
