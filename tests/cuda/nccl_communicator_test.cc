#include "cuda/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"

#include "tests/cuda/nccl_world.h"

namespace eplb::cuda {

namespace {

using testing::Bytes;
using testing::Communicators;
using testing::ConnectRanks;
using ::testing::HasSubstr;

// Faults of one test must not meet the next one.
class NcclCommunicatorTest : public ::testing::Test {
 protected:
  void TearDown() override { testing::SetFakeFaults(); }
};

class NumRanksTest : public NcclCommunicatorTest, public ::testing::WithParamInterface<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NumRanksTest, ::testing::Values(2, 3, 8, 32));

TEST_P(NumRanksTest, RowsOfRandomMatchingsArriveWhole) {
  constexpr uint64_t kSeed = 210;
  constexpr int32_t kRounds = 20;
  const int32_t num_ranks = GetParam();
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const Communicators ranks = ConnectRanks(num_ranks);
  std::vector<int32_t> to(static_cast<size_t>(num_ranks));
  std::iota(to.begin(), to.end(), 0);
  for (int32_t round = 0; round < kRounds; ++round) {
    std::shuffle(to.begin(), to.end(), random);  // rank r sends to to[r], or nothing to itself
    const size_t size = 1 + random() % 30000;
    std::vector<Bytes> sent(to.size());
    std::vector<Bytes> received(to.size(), Bytes(size));
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      const auto from = static_cast<int32_t>(std::ranges::find(to, rank) - to.begin());
      if (from == rank) continue;
      sent[r] = testing::RowOf(rank, to[r], round, size);
      ASSERT_TRUE(
          ranks[r]
              ->SendReceive(NcclSend{to[r], sent[r]}, NcclReceive{from, received[r]}, nullptr)
              .ok());
    }
    for (const absl::Status& done : testing::WaitForAll(ranks)) ASSERT_TRUE(done.ok()) << done;
    for (size_t r = 0; r < to.size(); ++r) {
      if (sent[r].empty()) continue;
      ASSERT_EQ(received[static_cast<size_t>(to[r])], sent[r]) << round;
    }
  }
}

TEST_F(NcclCommunicatorTest, OptionsReachNccl) {
  (void)ConnectRanks(1, {.max_ctas = 4, .channels_per_net_peer = 2, .name = "options"});
  EXPECT_THAT(testing::FakeLog(),
              HasSubstr("begin ranks=1 maxCTAs=4 nChannelsPerNetPeer=2 trafficClass=- "
                        "splitShare=0 shrinkShare=0 name=options"));
}

TEST_F(NcclCommunicatorTest, OneDirectionIsEnough) {
  const Communicators ranks = ConnectRanks(2);
  const Bytes sent = testing::RowOf(0, 1, 0, 100);
  Bytes received(100);
  ASSERT_TRUE(ranks[0]->SendReceive(NcclSend{1, sent}, std::nullopt, nullptr).ok());
  ASSERT_TRUE(ranks[1]->SendReceive(std::nullopt, NcclReceive{0, received}, nullptr).ok());
  for (const absl::Status& done : testing::WaitForAll(ranks)) EXPECT_TRUE(done.ok()) << done;
  EXPECT_EQ(received, sent);
}

TEST_F(NcclCommunicatorTest, SendReceiveOfNothingIsOverAtOnce) {
  const Communicators ranks = ConnectRanks(2);
  EXPECT_TRUE(ranks[0]->SendReceive(std::nullopt, std::nullopt, nullptr).ok());
  EXPECT_TRUE(ranks[0]->SendReceive(std::nullopt, std::nullopt, nullptr).ok());
}

TEST_F(NcclCommunicatorTest, ImpossiblePeersAndSizesAreRefused) {
  const Communicators ranks = ConnectRanks(2);
  Bytes row(1);
  const auto refusal = [&](std::optional<NcclSend> send, std::optional<NcclReceive> receive) {
    const absl::Status status = ranks[0]->SendReceive(send, receive, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(NcclSend{2, row}, std::nullopt), "rank 0 of 2 cannot send to rank 2");
  EXPECT_EQ(refusal(NcclSend{0, row}, std::nullopt), "rank 0 of 2 cannot send to rank 0");
  EXPECT_EQ(refusal(NcclSend{1, row}, NcclReceive{-1, row}),
            "rank 0 of 2 cannot receive from rank -1");
  EXPECT_EQ(refusal(std::nullopt, NcclReceive{1, {}}),
            "receive from rank 1 of 0 bytes, a row has some");
  EXPECT_TRUE(testing::WaitUntilReady(*ranks[0]).ok()) << "nothing has been asked of NCCL";
}

TEST_F(NcclCommunicatorTest, SendReceiveBeforeTheEndOfTheCallBeforeIsRefused) {
  const auto id = MakeNcclId(testing::FakeNccl());
  auto alone = NcclCommunicator::Begin(testing::FakeNccl(), *id, {.rank = 0, .num_ranks = 2});
  ASSERT_TRUE(alone.ok()) << alone.status();
  Bytes row(1);
  EXPECT_EQ((*alone)->SendReceive(NcclSend{1, row}, std::nullopt, nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
  const Communicators ranks = ConnectRanks(2);
  ASSERT_TRUE(ranks[0]->SendReceive(NcclSend{1, row}, std::nullopt, nullptr).ok());
  EXPECT_EQ(ranks[0]->SendReceive(NcclSend{1, row}, std::nullopt, nullptr).message(),
            "the call before is still under way");
}

TEST_F(NcclCommunicatorTest, SizesThatDifferAreAnErrorAtBothEnds) {
  const Communicators ranks = ConnectRanks(2);
  Bytes ten(10);
  Bytes eleven(11);
  ASSERT_TRUE(ranks[0]->SendReceive(NcclSend{1, ten}, std::nullopt, nullptr).ok());
  ASSERT_TRUE(ranks[1]->SendReceive(std::nullopt, NcclReceive{0, eleven}, nullptr).ok());
  for (const absl::Status& result : testing::WaitForAll(ranks)) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInternal) << result;
    EXPECT_THAT(std::string(result.message()), HasSubstr("other sizes"));
  }
}

TEST_F(NcclCommunicatorTest, GroupsThatDifferAreAnErrorAtBothEnds) {
  const Communicators ranks = ConnectRanks(2);
  Bytes row(10);
  ASSERT_TRUE(ranks[0]->SendReceive(NcclSend{1, row}, NcclReceive{1, row}, nullptr).ok());
  ASSERT_TRUE(ranks[1]->SendReceive(NcclSend{0, row}, std::nullopt, nullptr).ok());
  for (const absl::Status& result : testing::WaitForAll(ranks)) {
    EXPECT_THAT(std::string(result.message()), HasSubstr("other operations"));
  }
}

TEST_F(NcclCommunicatorTest, AsyncErrorHasItsCodeAndItsWordsAndStays) {
  testing::SetFakeFaults("rank=0,group=1,kind=async_error,code=6; rank=1,group=1,kind=async_error");
  const Communicators ranks = ConnectRanks(2);
  Bytes row(10);
  Bytes other(10);
  for (int group = 0; group < 2; ++group) {
    ASSERT_TRUE(ranks[0]->SendReceive(NcclSend{1, row}, std::nullopt, nullptr).ok());
    ASSERT_TRUE(ranks[1]->SendReceive(std::nullopt, NcclReceive{0, other}, nullptr).ok());
    const auto results = testing::WaitForAll(ranks);
    if (group == 0) continue;
    EXPECT_EQ(results[0],
              absl::UnavailableError("NCCL: remote process exited or there was a network error "
                                     "(6): an error that was asked for"));
    EXPECT_EQ(results[1],
              absl::InternalError("NCCL: internal error (3): an error that was asked for"));
  }
  EXPECT_EQ(ranks[0]->Poll().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ranks[0]->SendReceive(NcclSend{1, row}, std::nullopt, nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(ranks[0]->Abort().ok());
  EXPECT_EQ(ranks[0]->Poll().status().code(), absl::StatusCode::kUnavailable) << "the cause stays";
}

TEST_F(NcclCommunicatorTest, AbortEndsAHangAndNothingIsWrittenAfterwards) {
  testing::SetFakeFaults("rank=0,kind=hang");
  const Communicators ranks = ConnectRanks(2);
  const Bytes row = testing::RowOf(0, 1, 0, 1000);
  Bytes received(1000);
  ASSERT_TRUE(ranks[0]->SendReceive(NcclSend{1, row}, std::nullopt, nullptr).ok());
  ASSERT_TRUE(ranks[1]->SendReceive(std::nullopt, NcclReceive{0, received}, nullptr).ok());
  for (const absl::Status& state : testing::WaitForAll(ranks, absl::Milliseconds(50))) {
    EXPECT_EQ(state.code(), absl::StatusCode::kDeadlineExceeded) << state;
  }
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(ranks[1]->Abort().ok());
  EXPECT_TRUE(ranks[1]->Abort().ok());  // once more does nothing
  EXPECT_TRUE(ranks[0]->Abort().ok());
  EXPECT_LT(absl::Now() - begin, testing::kPrompt);
  EXPECT_EQ(received, Bytes(1000));
  EXPECT_EQ(ranks[1]->Poll().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(NcclCommunicatorTest, AbortInTheMiddleOfARowLeavesTheBufferAlone) {
  constexpr size_t kSize = 64 << 20;  // takes longer than the way to Abort
  const Communicators ranks = ConnectRanks(2);
  const Bytes row(kSize, std::byte{1});
  Bytes received(kSize);
  ASSERT_TRUE(ranks[0]->SendReceive(NcclSend{1, row}, std::nullopt, nullptr).ok());
  ASSERT_TRUE(ranks[1]->SendReceive(std::nullopt, NcclReceive{0, received}, nullptr).ok());
  EXPECT_TRUE(ranks[1]->Abort().ok());
  const Bytes at_abort = received;
  (void)testing::WaitUntilReady(*ranks[0]);
  EXPECT_EQ(received, at_abort);
}

TEST_F(NcclCommunicatorTest, AbortEndsAConnectThatOthersNeverJoin) {
  const auto id = MakeNcclId(testing::FakeNccl());
  auto alone = NcclCommunicator::Begin(testing::FakeNccl(), *id, {.rank = 1, .num_ranks = 3});
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(testing::WaitUntilReady(**alone, absl::Milliseconds(20)).code(),
            absl::StatusCode::kDeadlineExceeded);
  const absl::Time begin = absl::Now();
  alone->reset();
  EXPECT_LT(absl::Now() - begin, testing::kPrompt);
}

TEST_F(NcclCommunicatorTest, PeerThatAbortsIsGoneForTheOthers) {
  const Communicators ranks = ConnectRanks(3);
  Bytes row(10);
  ASSERT_TRUE(ranks[0]->SendReceive(NcclSend{1, row}, std::nullopt, nullptr).ok());
  EXPECT_TRUE(ranks[1]->Abort().ok());
  const absl::Status result = testing::WaitUntilReady(*ranks[0]);
  EXPECT_EQ(result.code(), absl::StatusCode::kUnavailable) << result;
  EXPECT_THAT(std::string(result.message()), HasSubstr("rank 1 has closed its connection"));
  const auto bystander = ranks[2]->Poll();
  EXPECT_TRUE(bystander.ok() && *bystander) << "who exchanges nothing with it notices nothing";
}

const NcclOptions kGood{.rank = 1, .num_ranks = 2, .traffic_class = 3};

TEST(NcclConfigTest, OwnVersionGetsEverything) {
  const NcclOptions options{.rank = 1, .num_ranks = 2, .traffic_class = 3, .name = "rows"};
  const ncclConfig_t config = MakeNcclConfig(options, NCCL_VERSION_CODE);
  EXPECT_EQ(config.size, sizeof(ncclConfig_t));
  EXPECT_EQ(config.version, NCCL_VERSION_CODE);
  EXPECT_EQ(config.blocking, 0);
  EXPECT_EQ(config.maxCTAs, 16);
  EXPECT_EQ(config.nChannelsPerNetPeer, 8);
  EXPECT_EQ(config.trafficClass, 3);
  EXPECT_EQ(config.splitShare, 0);
  EXPECT_EQ(config.shrinkShare, 0);
  EXPECT_STREQ(config.commName, "rows");
}

TEST(NcclConfigTest, OlderVersionIsToldOnlyWhatItKnows) {
  const ncclConfig_t oldest = MakeNcclConfig(kGood, 21800);
  EXPECT_EQ(oldest.version, 21800U);
  EXPECT_EQ(oldest.size, offsetof(ncclConfig_t, splitShare) + sizeof(int));
  EXPECT_EQ(oldest.maxCTAs, 16);
  EXPECT_EQ(oldest.trafficClass, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(oldest.commName, nullptr);
  EXPECT_EQ(oldest.shrinkShare, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(oldest.nChannelsPerNetPeer, NCCL_CONFIG_UNDEF_INT);
  const ncclConfig_t before_classes = MakeNcclConfig(kGood, 22505);
  EXPECT_EQ(before_classes.trafficClass, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(before_classes.size, offsetof(ncclConfig_t, trafficClass));
  EXPECT_EQ(MakeNcclConfig(kGood, 22602).trafficClass, 3);
  EXPECT_EQ(MakeNcclConfig(kGood, 22602).commName, nullptr);
  EXPECT_STREQ(MakeNcclConfig(kGood, 22703).commName, "eplb");
  EXPECT_EQ(MakeNcclConfig(kGood, 22703).nChannelsPerNetPeer, NCCL_CONFIG_UNDEF_INT);
}

TEST(NcclConfigTest, NewerVersionIsToldTheVersionOfTheHeader) {
  constexpr int kNewer = NCCL_VERSION_CODE + 1;
  EXPECT_EQ(MakeNcclConfig(kGood, kNewer).version, NCCL_VERSION_CODE);
  EXPECT_EQ(MakeNcclConfig(kGood, kNewer).size, sizeof(ncclConfig_t));
}

TEST(NcclConfigTest, TrafficClassIsLeftToNcclUnlessItIsGiven) {
  EXPECT_EQ(MakeNcclConfig({}, NCCL_VERSION_CODE).trafficClass, NCCL_CONFIG_UNDEF_INT);
}

}  // namespace

}  // namespace eplb::cuda
