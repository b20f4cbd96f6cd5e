#include "client/migration/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/monotonic_clock.h"
#include "cuda/checksum.h"
#include "tests/client/migration/executor_contract.h"
#include "tests/client/migration/expert_world.h"
#include "tests/client/migration/host_world.h"
#include "tests/client/migration/peer_world.h"
#include "tests/client/migration/stubborn_queue.h"

namespace eplb {

namespace {

using ::testing::HasSubstr;

Transports MakeInproc(int32_t world_size, int64_t staging_bytes) {
  return *MakeInprocTransports(world_size, staging_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ExecutorContractTest,
    ::testing::Values(
        ExecutorKind{"InprocEveryReplica", MakeInproc, StateResidency::kEveryReplica},
        ExecutorKind{"InprocWithPrimary", MakeInproc, StateResidency::kWithPrimary},
        ExecutorKind{"SharedEveryReplica", MakeSharedMemoryWorld, StateResidency::kEveryReplica},
        ExecutorKind{"SharedWithPrimary", MakeSharedMemoryWorld, StateResidency::kWithPrimary},
        ExecutorKind{"PeerEveryReplica", MakePeerWorld, StateResidency::kEveryReplica},
        ExecutorKind{"PeerWithPrimary", MakePeerWorld, StateResidency::kWithPrimary},
        ExecutorKind{"TcpWithPrimary", MakeTcpWorld, StateResidency::kWithPrimary}),
    [](const auto& kind) { return kind.param.name; });

TEST(ExecutorFaultTest, FlippedByteFailsTheStageAndNoSlotChanges) {
  std::mt19937 random(8);
  const Topology topology = MakeTopology(2, 8, 8, 4);
  InprocFaults faults;
  faults.after_copy = [](RankId, RankId to, int32_t row, std::span<std::byte> staged) {
    if (to == RankId{2} && row == 1) staged.back() ^= std::byte{4};
  };
  EpGroup ep_group(topology, StateResidency::kEveryReplica, [&](int32_t n, int64_t bytes) {
    return *MakeInprocTransports(n, bytes, faults);
  });
  const Placement current = RandomPlacement(random, topology);
  ep_group.Fill(current);
  const auto before = ep_group.Snapshot();
  const MigrationPlan plan = ep_group.Plan(current, RandomPlacement(random, topology));
  const auto results = ep_group.Stage(plan, 1);
  EXPECT_EQ(results[2].status().code(), absl::StatusCode::kDataLoss) << results[2].status();
  EXPECT_THAT(std::string(results[2].status().message()), HasSubstr("row 1"));
  ep_group.Discard();
  EXPECT_EQ(ep_group.Snapshot(), before);
}

TEST(ExecutorFaultTest, PlanAboveStagingIsResourceExhaustedBeforeAnythingMoves) {
  std::mt19937 random(9);
  const Topology topology = MakeTopology(4, 12, 12, 3);
  EpGroup ep_group(topology, StateResidency::kEveryReplica, MakeInproc, 1, /*layers_per_chunk=*/1);
  const Placement current = RandomPlacement(random, topology);
  ep_group.Fill(current);
  const MigrationPlan plan = ep_group.Plan(current, RandomPlacement(random, topology));
  const absl::Status status = ep_group.executor(0).CheckFits(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("are missing"));
  for (const auto& staged : ep_group.Stage(plan, 1)) {
    EXPECT_EQ(staged.status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(ep_group.CountWrong(current), 0);
}

TEST(ExecutorFaultTest, OneLayerChunksFitStagingOfOneLayer) {
  std::mt19937 random(10);
  const Topology topology = MakeTopology(4, 12, 14, 3);
  EpGroup ep_group(topology, StateResidency::kWithPrimary, MakeInproc, 1, /*layers_per_chunk=*/1);
  Placement current = RandomPlacement(random, topology);
  ep_group.Fill(current);
  const Placement target = RandomPlacement(random, topology);
  const auto chunks = CutIntoChunks(current, target, 1);
  ASSERT_TRUE(chunks.ok());
  uint64_t version = 0;
  for (const Chunk& chunk : *chunks) {
    const MigrationPlan plan = ep_group.Plan(current, chunk.after);
    for (int32_t rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(ep_group.executor(rank).CheckFits(plan).ok());
    for (const auto& staged : ep_group.Stage(plan, ++version)) {
      ASSERT_TRUE(staged.ok()) << staged.status();
    }
    ep_group.Commit();
    EXPECT_EQ(ep_group.CountWrong(chunk.after), 0);
    current = chunk.after;
  }
  EXPECT_EQ(current, target);
}

TEST(ExecutorFaultTest, SecondStageNeedsACommitOrADiscard) {
  const Topology topology = MakeTopology(1, 2, 2, 1);
  EpGroup ep_group(topology, StateResidency::kEveryReplica, MakeInproc);
  const MigrationPlan plan =
      ep_group.Plan(Placement::Static(topology), Placement::Static(topology));
  ASSERT_TRUE(ep_group.Stage(plan, 1)[0].ok());
  EXPECT_EQ(ep_group.Stage(plan, 2)[0].status().code(), absl::StatusCode::kFailedPrecondition);
  ep_group.Discard();
  EXPECT_TRUE(ep_group.Stage(plan, 2)[0].ok());
}

TEST(ExecutorFaultTest, ArenaBelowStagingBytesIsRefused) {
  const Topology topology = MakeTopology(1, 2, 2, 1);
  const ExpertMemory memory(topology, GpuId{0}, Shapes());
  Transports transports = MakeInproc(1, 100);
  const absl::Status status =
      Executor::Make({.topology = topology, .gpu = GpuId{0}}, memory.tensors(),
                     std::move(transports[0]), cuda::MakeHostRowQueue())
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("arena has 100"));
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Notes what it is asked for. A post is done after `polls_left` more polls.
class NotedTransport final : public Transport {
 public:
  struct Notes {
    std::optional<size_t> under_way_at_post;  // transfers of the queue that had not ended
    int32_t polls_left = 0;
    int32_t num_aborts = 0;
    absl::Status aborted;
  };
  NotedTransport(Notes& notes, const StubbornQueue& queue) : notes_(notes), queue_(queue) {}

  std::string_view name() const override { return "noted"; }
  std::span<std::byte> staging() override { return {}; }
  absl::StatusOr<Ticket> Post(RowMoves) override {
    notes_.under_way_at_post = queue_.num_under_way();
    return 1;
  }
  absl::StatusOr<Progress> Poll(Ticket, absl::Duration) override {
    return Progress{.done = notes_.polls_left-- <= 0};
  }
  absl::Status Abort() override {
    ++notes_.num_aborts;
    return notes_.aborted;
  }
  void Leave() override {}

 private:
  Notes& notes_;
  const StubbornQueue& queue_;
};

class RowCarrierTest : public ::testing::Test {
 protected:
  RowCarrier& Make(Stubbornness stubbornness) {
    auto queue = std::make_unique<StubbornQueue>(stubbornness);
    queue_ = queue.get();
    auto transport = std::make_unique<NotedTransport>(notes_, *queue_);
    carrier_.emplace(std::move(transport), std::move(queue));
    return *carrier_;
  }
  static absl::Time Soon() { return MonotonicNow() + absl::Seconds(10); }

  NotedTransport::Notes notes_;
  StubbornQueue* queue_ = nullptr;
  std::optional<RowCarrier> carrier_;
};

TEST_F(RowCarrierTest, TheLastBatchGivesItsChecksumsOnce) {
  RowCarrier& carrier = Make({});
  const std::array<std::byte, 8> source{std::byte{1}};
  std::array<std::byte, 8> destination{};
  const cuda::RowCopy row{
      .source = source.data(), .destination = destination.data(), .num_bytes = 8};
  const auto batch = carrier.queue().Copy({&row, 1});
  ASSERT_TRUE(batch.ok()) << batch.status();
  carrier.SetLastBatch(*batch);
  const auto checksums = carrier.AwaitLastBatch(Soon());
  ASSERT_TRUE(checksums.ok()) << checksums.status();
  EXPECT_THAT(*checksums, ElementsAre(cuda::ChecksumOnHost(source)));
  EXPECT_EQ(destination, source);
  EXPECT_THAT(carrier.AwaitLastBatch(Soon()).value(), IsEmpty());
}

TEST_F(RowCarrierTest, APostBeginsWhenTheLastBatchHasEnded) {
  RowCarrier& carrier = Make({.looks_per_transfer = 5});
  carrier.SetLastBatch(carrier.queue().Transfer({}).value());
  int stream = 0;
  ASSERT_TRUE(carrier.Post({.deadline = Soon(), .stream = &stream}).ok());
  EXPECT_EQ(notes_.under_way_at_post, 0U);
  EXPECT_THAT(queue_->followed(), ElementsAre(&stream));
}

TEST_F(RowCarrierTest, ABatchThatDoesNotEndIsNotPostedOver) {
  RowCarrier& carrier = Make({.looks_per_transfer = 1 << 30});
  carrier.SetLastBatch(carrier.queue().Transfer({}).value());
  const auto ticket = carrier.Post({.deadline = MonotonicNow() + absl::Milliseconds(20)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(ticket.status())) << ticket.status();
  EXPECT_EQ(notes_.under_way_at_post, std::nullopt);
}

TEST_F(RowCarrierTest, AwaitPollsUntilThePostIsDone) {
  RowCarrier& carrier = Make({});
  notes_.polls_left = 3;
  const auto ticket = carrier.Post({.deadline = Soon()});
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  const auto progress = carrier.Await(*ticket);
  ASSERT_TRUE(progress.ok()) << progress.status();
  EXPECT_TRUE(progress->done);
  EXPECT_LT(notes_.polls_left, 0);
}

TEST_F(RowCarrierTest, ASettledCarrierMayVote) {
  RowCarrier& carrier = Make({.looks_per_transfer = 5});
  carrier.SetLastBatch(carrier.queue().Transfer({}).value());
  carrier.Settle();
  EXPECT_EQ(notes_.num_aborts, 1);
  EXPECT_EQ(queue_->num_under_way(), 0U);
  EXPECT_TRUE(carrier.may_vote());
}

TEST_F(RowCarrierTest, AWriteThatMayStillLandForbidsToVoteForGood) {
  RowCarrier& carrier = Make({});
  notes_.aborted = absl::InternalError("the copy did not end");
  carrier.Settle();
  EXPECT_FALSE(carrier.may_vote());
  notes_.aborted = absl::OkStatus();
  carrier.Settle();
  EXPECT_FALSE(carrier.may_vote());
}

TEST_F(RowCarrierTest, ABatchThatFailedForbidsToVoteAndThePostEndsAllTheSame) {
  RowCarrier& carrier = Make({});
  carrier.SetLastBatch(7);  // the queue does not know it
  carrier.Settle();
  EXPECT_EQ(notes_.num_aborts, 1);
  EXPECT_FALSE(carrier.may_vote());
}

using ::testing::ElementsAre;
using ::testing::Pair;

class DerivedTensorsTest : public ::testing::Test {
 protected:
  DerivedTensor Make(const std::string& name, int32_t layer) {
    return {.name = name,
            .layer = LayerId{layer},
            .rebuild = [this, name](int32_t of, std::span<const int32_t> slots) {
              calls_.push_back(absl::StrCat(name, "@", of, ": ", absl::StrJoin(slots, ",")));
              return name == failing_ ? absl::InternalError("no memory") : absl::OkStatus();
            }};
  }

  // 2 layers, 4 experts on 5 slots: GPU 0 has slots 0..2, GPU 1 has 3 and 4.
  const Topology topology_ =
      *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 5, .num_gpus = 2});
  const Placement static_ = Placement::Static(topology_);  // 0 1 2 | 3 0

  MigrationPlan PlanTo(std::vector<int32_t> slots, std::vector<int32_t> ranks) const {
    const LayerPlacement layer{.layer = LayerId{1},
                               .physical_to_logical = std::move(slots),
                               .replica_rank = std::move(ranks)};
    return *PlanMigration(
        static_, *static_.WithLayers({&layer, 1}), {},
        {.weight_bytes = 8, .state_bytes = 8, .state_residency = StateResidency::kWithPrimary});
  }

  std::string failing_;
  std::vector<std::string> calls_;
};

TEST_F(DerivedTensorsTest, EachFaultIsRefusedByTheTensorsName) {
  const ExpertMemory memory(
      topology_, GpuId{0},
      {{.name = "w", .role = TensorRole::kWeight, .row_bytes = 8, .row_stride = 8}});
  const auto refused = [&](std::vector<DerivedTensor> derived) {
    return std::string(CheckDerived(topology_, memory.tensors(), derived).message());
  };
  EXPECT_EQ(refused({Make("a", 0), Make("b", 0), Make("c", 1)}), "");
  EXPECT_EQ(refused({Make("a", 0), Make("a", 1)}), "tensor \"a\": registered twice");
  EXPECT_EQ(refused({Make("layers.1.w", 0)}), "tensor \"layers.1.w\": registered twice");
  EXPECT_EQ(refused({Make("a", 2)}), "tensor \"a\": layer 2 is not in 0..1");
  EXPECT_EQ(refused({{.name = "a", .layer = LayerId{0}, .rebuild = nullptr}}),
            "tensor \"a\": is derived and has no rebuild");
}

TEST_F(DerivedTensorsTest, DescriptionDoesNotDependOnTheOrder) {
  const std::vector<DerivedTensor> one = {Make("b", 1), Make("b", 0), Make("a", 1)};
  const std::vector<DerivedTensor> other = {Make("a", 1), Make("b", 0), Make("b", 1)};
  EXPECT_EQ(DescribeDerived(one), "layer 0 derived b\nlayer 1 derived a\nlayer 1 derived b\n");
  EXPECT_EQ(DescribeDerived(one), DescribeDerived(other));
}

TEST_F(DerivedTensorsTest, SlotsWhoseExpertOrStateChangesAreWritten) {
  // Slots 0 and 2 of GPU 0 all-gather their experts, and slot 4 becomes the primary of expert 0.
  const MigrationPlan plan = PlanTo({2, 1, 0, 3, 0}, {0, 0, 1, 0, 0});
  EXPECT_THAT(WrittenSlots(plan, topology_, GpuId{0}),
              ElementsAre(Pair(LayerId{1}, ElementsAre(0, 2))));
  EXPECT_THAT(WrittenSlots(plan, topology_, GpuId{1}),
              ElementsAre(Pair(LayerId{1}, ElementsAre(1))));
}

TEST_F(DerivedTensorsTest, RebuildIsCalledOncePerTensorOfALayerThatChanged) {
  const MigrationPlan plan = PlanTo({2, 1, 0, 3, 0}, {0, 0, 1, 0, 0});
  const std::vector<DerivedTensor> derived = {Make("b", 1), Make("a", 1), Make("c", 0)};
  EXPECT_TRUE(RebuildDerived(derived, plan, topology_, GpuId{0}).ok());
  EXPECT_THAT(calls_, ElementsAre("b@1: 0,2", "a@1: 0,2"));
}

TEST_F(DerivedTensorsTest, FailureIsDataLossNamingTheTensorAndEndsTheCalls) {
  const MigrationPlan plan = PlanTo({2, 1, 0, 3, 0}, {0, 0, 1, 0, 0});
  const std::vector<DerivedTensor> derived = {Make("b", 1), Make("a", 1)};
  failing_ = derived.front().name;
  EXPECT_EQ(
      RebuildDerived(derived, plan, topology_, GpuId{0}),
      absl::DataLossError("tensor \"b\": its rebuild failed for local slots 0, 2: no memory"));
  EXPECT_EQ(calls_.size(), 1U);
}

}  // namespace

}  // namespace eplb
