#include "server/rpc/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Time kStart = absl::UnixEpoch();

class RendezvousTest : public ::testing::Test {
 protected:
  // Call `call` of a rank; its answers are kept under that number.
  void Join(int call, Rendezvous::Member member, absl::Time now = kStart) {
    if (member.job.empty()) member.job = "job";
    if (member.key.empty()) member.key = "start";
    rendezvous_.Join(
        std::move(member), &callers_[call],
        [this, call](const absl::StatusOr<Rendezvous::Blobs>& blobs) {
          answers_[call].push_back(blobs);
        },
        now);
  }
  static Rendezvous::Member MemberOf(int32_t rank, int32_t world_size, uint64_t nonce = 1) {
    return {.rank = rank,
            .world_size = world_size,
            .nonce = nonce,
            .blob = absl::StrCat("blob", rank, "/", nonce)};
  }
  absl::Status StatusOf(int call) {
    EXPECT_EQ(answers_[call].size(), 1) << "call " << call;
    return answers_[call].empty() ? absl::UnknownError("no answer") : answers_[call][0].status();
  }

  Rendezvous rendezvous_{{.deadline = absl::Seconds(60), .max_bytes = 3 << 20}};
  char callers_[32] = {};
  std::map<int, std::vector<absl::StatusOr<Rendezvous::Blobs>>> answers_;
};

TEST_F(RendezvousTest, EverybodyGetsAllBlobsInRankOrder) {
  Join(0, MemberOf(2, 3));
  Join(1, MemberOf(0, 3));
  EXPECT_TRUE(answers_.empty());
  Join(2, MemberOf(1, 3));
  for (int call = 0; call < 3; ++call) {
    ASSERT_TRUE(StatusOf(call).ok());
    EXPECT_THAT(**answers_[call][0], ElementsAre("blob0/1", "blob1/1", "blob2/1"));
  }
}

TEST_F(RendezvousTest, TheDeadlineNamesTheMissingRanks) {
  Join(0, MemberOf(0, 3));
  rendezvous_.Expire(kStart + absl::Seconds(59));
  EXPECT_TRUE(answers_.empty());
  Join(1, MemberOf(2, 3), kStart + absl::Seconds(59));
  rendezvous_.Expire(kStart + absl::Seconds(60));
  EXPECT_EQ(StatusOf(0), absl::DeadlineExceededError(
                             "rank 1 of 3 did not come to exchange \"start\" of job \"job\" "
                             "within 1m"));
  EXPECT_EQ(StatusOf(1), StatusOf(0));
}

TEST_F(RendezvousTest, TheMostImpatientRankEndsIt) {
  Join(0, MemberOf(0, 3));
  Rendezvous::Member member = MemberOf(2, 3);
  member.patience = absl::Seconds(5);
  Join(1, std::move(member), kStart + absl::Seconds(1));
  rendezvous_.Expire(kStart + absl::Seconds(5));
  EXPECT_TRUE(answers_.empty());
  rendezvous_.Expire(kStart + absl::Seconds(6));
  EXPECT_EQ(StatusOf(1), absl::DeadlineExceededError(
                             "rank 1 of 3 did not come to exchange \"start\" of job \"job\" "
                             "within 6s"));
  EXPECT_EQ(StatusOf(0), StatusOf(1));
}

TEST_F(RendezvousTest, ManyMissingRanksAreCounted) {
  Join(0, MemberOf(0, 1000));
  rendezvous_.Expire(kStart + absl::Seconds(60));
  EXPECT_THAT(std::string(StatusOf(0).message()), HasSubstr("ranks 1, 2, 3, "));
  EXPECT_THAT(std::string(StatusOf(0).message()), HasSubstr("16 and 983 more of 1000"));
}

TEST_F(RendezvousTest, ANewerProcessReplacesTheEarlierCallOfItsRank) {
  Join(0, MemberOf(0, 2, 1));
  Join(1, MemberOf(0, 2, 2));
  EXPECT_EQ(StatusOf(0),
            absl::AbortedError("another process came as rank 0, which replaces this one"));
  Join(2, MemberOf(1, 2, 1));
  ASSERT_TRUE(StatusOf(1).ok());
  EXPECT_THAT(**answers_[2][0], ElementsAre("blob0/2", "blob1/1"));
}

TEST_F(RendezvousTest, ARankThatLostTheAnswerGetsItAgain) {
  Join(0, MemberOf(0, 2));
  Join(1, MemberOf(1, 2));
  Join(2, MemberOf(0, 2));
  ASSERT_TRUE(StatusOf(2).ok());
  EXPECT_THAT(**answers_[2][0], ElementsAre("blob0/1", "blob1/1"));
}

TEST_F(RendezvousTest, AnotherProcessAfterTheEndStartsAnew) {
  Join(0, MemberOf(0, 2));
  Join(1, MemberOf(1, 2));
  Join(2, MemberOf(0, 2, 9));
  EXPECT_TRUE(answers_[2].empty());
  Join(3, MemberOf(1, 2, 9));
  EXPECT_THAT(**answers_[2][0], ElementsAre("blob0/9", "blob1/9"));
}

TEST_F(RendezvousTest, ARankThatLeftIsMissingAndIsNotCalled) {
  Join(0, MemberOf(0, 2));
  Join(1, MemberOf(0, 3, 2));
  EXPECT_TRUE(rendezvous_.Leave(&callers_[0]));
  EXPECT_FALSE(rendezvous_.Leave(&callers_[0]));
  Join(2, MemberOf(0, 3));  // nobody waits any more, so another world size is fine
  EXPECT_TRUE(answers_[0].empty());
  EXPECT_TRUE(answers_[2].empty());
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
  for (int call = 0; call < 6; ++call) {
    EXPECT_EQ(StatusOf(call).code(), absl::StatusCode::kInvalidArgument) << call;
  }
}

TEST_F(RendezvousTest, AnotherWorldSizeIsRefusedByNumbers) {
  Join(0, MemberOf(0, 2));
  Join(1, MemberOf(1, 3));
  EXPECT_EQ(StatusOf(1),
            absl::InvalidArgumentError("rank 1 says world_size 3, the ranks before it said 2"));
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
  rendezvous_.Expire(kStart + absl::Hours(1));
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
