// Executor::BeginStage, FinishStage and CheckSources, and the thread that stages beside steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/monotonic_clock.h"
#include "client/rows/executor.h"
#include "client/rows/staging_thread.h"
#include "cuda/checksum.h"
#include "tests/client/faulty_channels.h"
#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/expert_world.h"
#include "tests/client/rows/forwarding.h"
#include "tests/client/rows/paths/bounce_world.h"
#include "tests/client/rows/paths/host_world.h"
#include "tests/client/rows/paths/peer_world.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

using StagedAhead = absl::StatusOr<Executor::Staged>;

// All ranks begin, then `before_rows` runs, then their threads move the rows.
std::vector<StagedAhead> StageAhead(
    EpGroup& ep_group, const MigrationPlan& plan, uint64_t post_id,
    const std::function<void()>& before_rows = [] {}) {
  std::vector<std::unique_ptr<StagingThread>> threads;
  for (int32_t rank = 0; rank < ep_group.num_ranks(); ++rank) {
    Executor& executor = ep_group.executor(rank);
    const absl::Status begun = executor.BeginStage(
        plan, {.post_id = post_id, .deadline = MonotonicNow() + absl::Seconds(30)});
    EXPECT_TRUE(begun.ok()) << begun;
    threads.push_back(std::make_unique<StagingThread>(executor));
  }
  before_rows();
  for (const auto& thread : threads) thread->Begin();
  std::vector<StagedAhead> results;
  for (const auto& thread : threads) results.push_back(thread->Join());
  return results;
}

absl::Status Check(EpGroup& ep_group, int32_t rank) {
  return ep_group.executor(rank).CheckSources(nullptr, MonotonicNow() + absl::Seconds(30));
}

// A byte of the row that a transfer's weights are read from.
std::byte& SourceByte(EpGroup& ep_group, const Transfer& transfer, const Topology& topology) {
  const int32_t rank = transfer.source.value;
  for (const ExpertTensor& tensor : ep_group.executor(rank).tensors()) {
    if (tensor.layer != transfer.layer || tensor.role != TensorRole::kWeight) continue;
    const int32_t slot = transfer.source_slot.value - topology.FirstSlotOf(transfer.source).value;
    return *(static_cast<std::byte*>(tensor.base) + slot * tensor.row_stride + 5);
  }
  ADD_FAILURE() << "no weight in layer " << transfer.layer.value;
  static std::byte none{};
  return none;
}

const Transfer& WithWeights(const std::vector<Transfer>& transfers) {
  return *std::find_if(transfers.begin(), transfers.end(),
                       [](const Transfer& transfer) { return !transfer.weight_slots.empty(); });
}

struct AheadKind {
  const char* name;
  MakeWorld make;
};

class ExecutorAheadTest : public ::testing::TestWithParam<AheadKind> {
 protected:
  static constexpr auto kResidency = StateResidency::kEveryReplica;
  const Topology topology_ = MakeTopology(3, 8, 12, 4);
  EpGroup ep_group_{topology_, kResidency, GetParam().make};
  std::mt19937 random_{20240518};
  const Placement current_ = RandomPlacement(random_, topology_);
  const Placement target_ = RandomPlacement(random_, topology_);
};

const AheadKind kAheadKinds[] = {{"Shared", MakeSharedMemoryWorld},
                                 {"Tcp", MakeTcpWorld},
                                 {"Peer", MakePeerWorld},
                                 {"BouncePinned", MakeBounceWorld<BounceWay::kPinned>},
                                 {"BounceSockets", MakeBounceWorld<BounceWay::kSockets>}};

std::string NameOfKind(const ::testing::TestParamInfo<AheadKind>& kind) { return kind.param.name; }

INSTANTIATE_TEST_SUITE_P(Kinds, ExecutorAheadTest, ::testing::ValuesIn(kAheadKinds), &NameOfKind);

TEST_P(ExecutorAheadTest, EverySlotHoldsWhatTheTargetSaysAfterRandomSwitches) {
  Placement current = current_;
  ep_group_.Fill(current);
  for (uint64_t version = 1; version <= 4; ++version) {
    const Placement target = RandomPlacement(random_, topology_);
    const MigrationPlan plan = ep_group_.Plan(current, target);
    const auto before = ep_group_.Snapshot();
    int64_t received = 0;
    for (const StagedAhead& staged : StageAhead(ep_group_, plan, version)) {
      ASSERT_TRUE(staged.ok()) << staged.status();
      received += staged->received_bytes;
    }
    EXPECT_EQ(received, plan.link_bytes);
    EXPECT_EQ(ep_group_.Snapshot(), before) << "a slot was written before the commit";
    for (int32_t rank = 0; rank < ep_group_.num_ranks(); ++rank) {
      EXPECT_TRUE(Check(ep_group_, rank).ok()) << Check(ep_group_, rank);
    }
    ep_group_.Commit();
    EXPECT_EQ(ep_group_.CountWrong(target), 0) << "version " << version;
    current = target;
  }
}

TEST_P(ExecutorAheadTest, ARowThatChangesAfterItWasReadIsNamedByItsRankAlone) {
  ep_group_.Fill(current_);
  const MigrationPlan plan = ep_group_.Plan(current_, target_);
  uint64_t post_id = 0;
  for (const Transfer* transfer : {&WithWeights(plan.transfers), &WithWeights(plan.local)}) {
    for (const StagedAhead& staged : StageAhead(ep_group_, plan, ++post_id)) {
      ASSERT_TRUE(staged.ok()) << staged.status();
    }
    std::byte& byte = SourceByte(ep_group_, *transfer, topology_);
    byte ^= std::byte{1};
    for (int32_t rank = 0; rank < ep_group_.num_ranks(); ++rank) {
      const absl::Status same = Check(ep_group_, rank);
      EXPECT_EQ(absl::IsDataLoss(same), rank == transfer->source.value) << same;
      if (same.ok()) continue;
      EXPECT_THAT(std::string(same.message()),
                  HasSubstr(absl::StrCat("the row of slot ", transfer->source_slot.value,
                                         " of tensor \"layers.", transfer->layer.value, ".w1\"")));
    }
    byte ^= std::byte{1};
    EXPECT_TRUE(Check(ep_group_, transfer->source.value).ok()) << "it is again what was sent";
    ep_group_.Discard();
  }
}

// A trainer replaces rows for a while and restores them, for example to evaluate averaged weights.
TEST_P(ExecutorAheadTest, ARowThatWasAnotherOneOnlyWhileItWasReadIsNamed) {
  ep_group_.Fill(current_);
  const MigrationPlan plan = ep_group_.Plan(current_, target_);
  const Transfer& transfer = WithWeights(plan.transfers);
  std::byte& byte = SourceByte(ep_group_, transfer, topology_);
  const auto results = StageAhead(ep_group_, plan, 1, [&] { byte ^= std::byte{1}; });
  for (const StagedAhead& staged : results) ASSERT_TRUE(staged.ok()) << staged.status();
  byte ^= std::byte{1};
  EXPECT_TRUE(absl::IsDataLoss(Check(ep_group_, transfer.source.value)));
}

TEST_P(ExecutorAheadTest, ARankWhosePeersNeverComeIsInterrupted) {
  ep_group_.Fill(current_);
  const MigrationPlan plan = ep_group_.Plan(current_, target_);
  const absl::Time began = MonotonicNow();
  Executor& executor = ep_group_.executor(1);
  ASSERT_TRUE(
      executor.BeginStage(plan, {.post_id = 1, .deadline = began + absl::Minutes(10)}).ok());
  StagingThread thread(executor);
  thread.Begin();
  EXPECT_TRUE(absl::IsCancelled(thread.Stop().status()));
  EXPECT_LT(MonotonicNow() - began, absl::Minutes(5));
  // The next stage is not interrupted, and the peers do not wait for the interrupted one.
  for (const StagedAhead& staged : StageAhead(ep_group_, plan, 2)) {
    ASSERT_TRUE(staged.ok()) << staged.status();
  }
  ep_group_.Commit();
  EXPECT_EQ(ep_group_.CountWrong(target_), 0);
}

TEST_P(ExecutorAheadTest, ThePeersOfARankThatCannotBeginDoNotWaitForIt) {
  ep_group_.Fill(current_);
  const MigrationPlan plan = ep_group_.Plan(current_, target_);
  MigrationPlan wrong = plan;
  wrong.transfers.front().destination = GpuId{77};
  const absl::Time deadline = MonotonicNow() + absl::Minutes(10);
  EXPECT_TRUE(absl::IsInvalidArgument(
      ep_group_.executor(0).BeginStage(wrong, {.post_id = 1, .deadline = deadline})));
  for (int32_t rank = 1; rank < ep_group_.num_ranks(); ++rank) {
    Executor& executor = ep_group_.executor(rank);
    ASSERT_TRUE(executor.BeginStage(plan, {.post_id = 1, .deadline = deadline}).ok());
  }
  RunRanks(ep_group_.num_ranks(), [&](int32_t rank) {
    if (rank == 0) return;
    const absl::Status status = ep_group_.executor(rank).FinishStage().status();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
  });
  EXPECT_EQ(ep_group_.CountWrong(current_), 0);
}

class SentSumsTest : public ::testing::TestWithParam<AheadKind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, SentSumsTest, ::testing::ValuesIn(kAheadKinds), &NameOfKind);

// Rows of several pieces, and what a post that keeps no sums says.
TEST_P(SentSumsTest, EveryByteThatWasSentHasAChecksum) {
  constexpr int64_t kRow = 600'001;
  Transports transports = GetParam().make(2, 2 * kRow);
  std::vector<std::byte> row(kRow);
  std::mt19937 random(3);
  for (std::byte& byte : row) byte = static_cast<std::byte>(random());
  for (const uint64_t post_id : {1, 2}) {
    std::vector<SentPiece> sent;
    RunRanks(2, [&](int32_t rank) {
      RowMoves moves{.post_id = post_id,
                     .deadline = MonotonicNow() + absl::Seconds(30),
                     .keep_sums = post_id == 1};
      if (rank == 0) {
        moves.sends = {{.to = RankId{1}, .row = 0, .bytes = row, .staging_offset = 64}};
      } else {
        moves.receives = {{.from = RankId{0}, .row = 0, .staging_offset = 64, .num_bytes = kRow}};
      }
      Transport& transport = *transports[static_cast<size_t>(rank)];
      const absl::StatusOr<Ticket> ticket = transport.Post(std::move(moves));
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      const absl::StatusOr<Progress> progress = Finish(transport, *ticket);
      ASSERT_TRUE(progress.ok()) << progress.status();
      if (rank == 0) sent = progress->sent;
    });
    int64_t next = 0;
    for (const SentPiece& piece : sent) {
      EXPECT_EQ(piece.send, 0U);
      EXPECT_EQ(piece.offset, next);
      next += piece.num_bytes;
      const auto bytes = std::span<const std::byte>(row).subspan(
          static_cast<size_t>(piece.offset), static_cast<size_t>(piece.num_bytes));
      EXPECT_EQ(piece.checksum, cuda::ChecksumOnHost(bytes));
    }
    EXPECT_EQ(next, post_id == 1 ? kRow : 0);
  }
}

// Moves rows and does not report their checksums.
class SilentTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  std::string_view name() const override { return "silent"; }
  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    absl::StatusOr<Progress> progress = ForwardingTransport::Poll(ticket, max_wait);
    if (progress.ok()) progress->sent.clear();
    return progress;
  }
};

TEST(ExecutorSumsTest, BytesWhoseChecksumsAreNotKnownAreNotStagedAhead) {
  const Topology topology = MakeTopology(1, 4, 4, 2);
  EpGroup ep_group(topology, StateResidency::kEveryReplica, [](int32_t ranks, int64_t bytes) {
    Transports transports = MakeSharedMemoryWorld(ranks, bytes);
    for (auto& one : transports) one = std::make_unique<SilentTransport>(std::move(one));
    return transports;
  });
  const Placement current = Placement::Static(topology);
  LayerPlacement swapped = current.Layer(LayerId{0});
  std::swap(swapped.physical_to_logical[0], swapped.physical_to_logical[2]);
  const Placement target = *current.WithLayers({&swapped, 1});
  ep_group.Fill(current);
  for (const StagedAhead& staged : StageAhead(ep_group, ep_group.Plan(current, target), 1)) {
    EXPECT_TRUE(absl::IsInternal(staged.status())) << staged.status();
    EXPECT_THAT(std::string(staged.status().message()),
                HasSubstr("transport silent did not report the checksums of 1717 bytes"));
  }
  ep_group.Commit();  // nothing is staged
  EXPECT_EQ(ep_group.CountWrong(current), 0);
}

}  // namespace
}  // namespace eplb
