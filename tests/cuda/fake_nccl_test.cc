// The stand-in for libnccl itself: its plans and its rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "cuda/nccl_library.h"
#include "tests/cuda/nccl_world.h"
#include "tests/support/fake_nccl/plans.h"

namespace eplb::fake_nccl {
namespace {

using cuda::testing::Bytes;
using cuda::testing::FakeNccl;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<Operation> SendsTo(const std::vector<int32_t>& peers) {
  std::vector<Operation> operations;
  operations.reserve(peers.size());
  for (const int32_t peer : peers)
    operations.push_back({.is_send = true, .peer = peer, .bytes = 1});
  return operations;
}

size_t NumPlans(const std::vector<Operation>& operations, int32_t num_ranks, int32_t channels) {
  return CutIntoPlans(operations, {.rank = 0, .num_ranks = num_ranks, .channels = channels}).size();
}

TEST(CutIntoPlansTest, PlanHolds254BatchesOfOperationsToOnePeer) {
  for (const auto& [channels, most] :
       std::vector<std::pair<int32_t, size_t>>{{32, 7}, {16, 15}, {8, 31}, {4, 63}, {2, 127}}) {
    EXPECT_EQ(NumPlans(SendsTo(std::vector<int32_t>(most, 1)), 2, channels), 1U) << channels;
    EXPECT_EQ(NumPlans(SendsTo(std::vector<int32_t>(most + 1, 1)), 2, channels), 2U) << channels;
  }
}

TEST(CutIntoPlansTest, DifferentPeersShareBatches) {
  std::vector<int32_t> peers(56);  // 7 rows of 8
  std::iota(peers.begin(), peers.end(), 1);
  EXPECT_EQ(NumPlans(SendsTo(peers), 64, 32), 1U);
  peers.push_back(57);
  EXPECT_EQ(NumPlans(SendsTo(peers), 64, 32), 2U);
}

TEST(CutIntoPlansTest, OneSendAndOneReceiveAreOnePlanOnAllChannels) {
  const std::vector<Operation> operations = {{.is_send = true, .peer = 1, .bytes = 1},
                                             {.is_send = false, .peer = 2, .bytes = 1}};
  EXPECT_THAT(CutIntoPlans(operations, {.rank = 0, .num_ranks = 3, .channels = 64}), SizeIs(1));
}

// Ranks that are driven through NCCL's own functions, which allow what NcclCommunicator does not.
class RawRanks {
 public:
  explicit RawRanks(int32_t num_ranks) {
    ncclUniqueId id;
    EXPECT_EQ(nccl().ncclGetUniqueId(&id), ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = 32;
    ranks_.resize(static_cast<size_t>(num_ranks));
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      EXPECT_EQ(nccl().ncclCommInitRankConfig(&ranks_[static_cast<size_t>(rank)], num_ranks, id,
                                              rank, &config),
                ncclInProgress);
    }
    EXPECT_EQ(Wait(cuda::testing::kPatience), ncclSuccess);
  }
  ~RawRanks() {
    for (const ncclComm_t rank : ranks_) EXPECT_EQ(nccl().ncclCommAbort(rank), ncclSuccess);
  }
  RawRanks(const RawRanks&) = delete;
  RawRanks& operator=(const RawRanks&) = delete;

  ncclResult_t Group(size_t rank, const std::vector<Operation>& operations) {
    EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
    for (const Operation& one : operations) {
      EXPECT_EQ(
          one.is_send
              ? nccl().ncclSend(one.source, one.bytes, ncclUint8, one.peer, ranks_[rank], nullptr)
              : nccl().ncclRecv(one.target, one.bytes, ncclUint8, one.peer, ranks_[rank], nullptr),
          ncclSuccess);
    }
    return nccl().ncclGroupEnd();
  }

  // The first state that is not success, ncclInProgress only at the deadline.
  ncclResult_t Wait(absl::Duration patience) {
    const absl::Time deadline = absl::Now() + patience;
    for (const ncclComm_t rank : ranks_) {
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) {
        EXPECT_EQ(nccl().ncclCommGetAsyncError(rank, &state), ncclSuccess);
        if (state == ncclInProgress && absl::Now() > deadline) return state;
        absl::SleepFor(absl::Microseconds(100));
      }
      if (state != ncclSuccess) return state;
    }
    return ncclSuccess;
  }

  std::string LastError() { return nccl().ncclGetLastError(nullptr); }

 private:
  static const cuda::NcclLibrary::Functions& nccl() { return FakeNccl().functions(); }
  std::vector<ncclComm_t> ranks_;
};

TEST(FakeNcclTest, GroupOfTwoSendsOrTwoReceivesIsRefused) {
  Bytes row(1);
  RawRanks ranks(3);
  const Operation send{.is_send = true, .peer = 1, .bytes = 1, .source = row.data()};
  Operation receive{.is_send = false, .peer = 1, .bytes = 1, .target = row.data()};
  EXPECT_EQ(ranks.Group(0, {send, send}), ncclInvalidUsage);
  EXPECT_EQ(ranks.LastError(), "two sends in a group");
  receive.peer = 2;
  EXPECT_EQ(ranks.Group(0, {receive, send, receive}), ncclInvalidUsage);
  EXPECT_EQ(ranks.LastError(), "two receives in a group");
  EXPECT_THAT(cuda::testing::FakeLog(), HasSubstr("rank=0 refused two receives in a group\n"));
}

TEST(FakeNcclTest, SecondGroupBeforeTheEndOfTheFirstIsRefused) {
  Bytes row(1);
  RawRanks ranks(2);
  const Operation send{.is_send = true, .peer = 1, .bytes = 1, .source = row.data()};
  EXPECT_EQ(ranks.Group(0, {send}), ncclInProgress);
  EXPECT_EQ(ranks.Group(0, {send}), ncclInvalidUsage);
  EXPECT_EQ(ranks.LastError(), "a group before the end of the call before");
}

TEST(FakeNcclTest, CallsOfTwoThreadsAtOnceAndAfterTheAbortAreViolations) {
  cuda::testing::SetFakeFaults("rank=0,kind=slow_abort,ms=1000");
  const auto& nccl = FakeNccl().functions();
  ncclUniqueId id;
  ASSERT_EQ(nccl.ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t rank = nullptr;
  ASSERT_EQ(nccl.ncclCommInitRankConfig(&rank, 2, id, 0, &config), ncclInProgress);
  cuda::testing::SetFakeFaults();
  EXPECT_EQ(cuda::testing::TakeFakeViolations(), "");
  std::thread aborter([&] { EXPECT_EQ(nccl.ncclCommAbort(rank), ncclSuccess); });
  ncclResult_t state = ncclSuccess;
  std::string violations;
  const absl::Time limit = absl::Now() + cuda::testing::kPatience;
  while (violations.empty() && absl::Now() < limit) {
    (void)nccl.ncclCommGetAsyncError(rank, &state);
    violations = cuda::testing::TakeFakeViolations();
  }
  aborter.join();
  EXPECT_THAT(violations, HasSubstr("two threads call on a communicator at once\n"));
  (void)cuda::testing::TakeFakeViolations();
  EXPECT_EQ(nccl.ncclCommGetAsyncError(rank, &state), ncclInvalidArgument);
  EXPECT_EQ(cuda::testing::TakeFakeViolations(), "a call on a communicator that is no more\n");
}

// A rebalance in which few ranks hold most rows that move; equal for both programs.
struct Transfer {
  int32_t from = 0;
  int32_t to = 0;
};

std::vector<Transfer> SkewedTransfers(int32_t num_ranks, int32_t number, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&] {
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
    return static_cast<int32_t>(num_ranks * uniform * uniform * uniform);
  };
  std::vector<Transfer> transfers;
  while (transfers.size() < static_cast<size_t>(number)) {
    const Transfer transfer{.from = draw(), .to = draw()};
    if (transfer.from != transfer.to) transfers.push_back(transfer);
  }
  return transfers;
}

constexpr int32_t kNumRanks = 12;
constexpr int32_t kNumTransfers = 1200;
constexpr uint64_t kSeed = 212;  // nineteen of the seeds 201 to 220 hang

TEST(FakeNcclTest, OneBigGroupOfManyTransfersHangs) {
  setenv("EPLB_FAKE_NCCL_RULES", "off", 1);
  Bytes sent(kNumTransfers, std::byte{1});
  Bytes received(kNumTransfers);
  RawRanks ranks(kNumRanks);
  unsetenv("EPLB_FAKE_NCCL_RULES");
  std::vector<std::vector<Operation>> groups(kNumRanks);
  const std::vector<Transfer> transfers = SkewedTransfers(kNumRanks, kNumTransfers, kSeed);
  for (size_t i = 0; i < transfers.size(); ++i) {
    const auto [from, to] = transfers[i];
    groups[static_cast<size_t>(from)].push_back(
        {.is_send = true, .peer = to, .bytes = 1, .source = &sent[i]});
    groups[static_cast<size_t>(to)].push_back(
        {.is_send = false, .peer = from, .bytes = 1, .target = &received[i]});
  }
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    ASSERT_EQ(ranks.Group(rank, groups[rank]), ncclInProgress);
  }
  EXPECT_EQ(ranks.Wait(absl::Seconds(2)), ncclInProgress) << "seed " << kSeed;
}

TEST(FakeNcclTest, BigGroupThatFitsOnePlanDoesNotHang) {
  setenv("EPLB_FAKE_NCCL_RULES", "off", 1);
  Bytes sent(7, std::byte{1});
  Bytes received(7);
  RawRanks ranks(2);
  unsetenv("EPLB_FAKE_NCCL_RULES");
  std::vector<Operation> sends;
  std::vector<Operation> receives;
  for (size_t i = 0; i < sent.size(); ++i) {
    sends.push_back({.is_send = true, .peer = 1, .bytes = 1, .source = &sent[i]});
    receives.push_back({.is_send = false, .peer = 0, .bytes = 1, .target = &received[i]});
  }
  ASSERT_EQ(ranks.Group(0, sends), ncclInProgress);
  ASSERT_EQ(ranks.Group(1, receives), ncclInProgress);
  EXPECT_EQ(ranks.Wait(cuda::testing::kPatience), ncclSuccess);
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace eplb::fake_nccl
