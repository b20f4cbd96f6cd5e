#include "client/migration/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "absl/time/clock.h"

#include "tests/client/control/world.h"
#include "tests/client/migration/expert_world.h"
#include "tests/client/migration/host_world.h"
#include "tests/client/migration/peer_world.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

using MakeWorld = std::function<Transports(int32_t world_size, int64_t staging_bytes)>;

Transports MakeInproc(int32_t world_size, int64_t staging_bytes) {
  return *MakeInprocTransports(world_size, staging_bytes);
}

Topology MakeTopology(int32_t layers, int32_t experts, int32_t slots, int32_t gpus) {
  return *Topology::Make({.num_layers = layers,
                          .num_experts = experts,
                          .num_slots = slots,
                          .num_gpus = gpus,
                          .num_nodes = gpus % 2 == 0 ? 2 : 1});
}

std::vector<TensorShape> Shapes() {
  return {{.name = "w1", .role = TensorRole::kWeight, .row_bytes = 1000, .row_stride = 1000},
          {.name = "w2", .role = TensorRole::kWeight, .row_bytes = 77, .row_stride = 128},
          {.name = "moment", .role = TensorRole::kState, .row_bytes = 640, .row_stride = 700}};
}

// A lane of ranks with memory, executors and a placement in force.
class Lane {
 public:
  Lane(const Topology& topology, StateResidency residency, const MakeWorld& make,
       int32_t num_lanes = 1, int32_t layers_per_chunk = 1000)
      : topology_(topology), residency_(residency), num_lanes_(num_lanes) {
    const int32_t ranks = num_lanes * topology.num_gpus();
    std::vector<ExecutorOptions> options;
    int64_t staging = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const GpuId gpu{rank % topology.num_gpus()};
      memories_.push_back(std::make_unique<ExpertMemory>(topology, gpu, Shapes()));
      options.push_back({.topology = topology,
                         .gpu = gpu,
                         .lane = rank / topology.num_gpus(),
                         .state_residency = residency,
                         .layers_per_chunk = layers_per_chunk});
      staging = *StagingBytes(options.back(), memories_.back()->tensors());
    }
    Transports transports = make(ranks, staging);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      auto executor = Executor::Make(options[rank], memories_[rank]->tensors(),
                                     std::move(transports[rank]), cuda::MakeHostRowQueue());
      EXPECT_TRUE(executor.ok()) << executor.status();
      executors_.push_back(*std::move(executor));
    }
  }

  int32_t num_ranks() const { return num_lanes_ * topology_.num_gpus(); }
  Executor& executor(int32_t rank) { return *executors_[rank]; }

  void Fill(const Placement& placement) {
    for (auto& memory : memories_) memory->Fill(placement, residency_);
  }
  int64_t CountWrong(const Placement& placement) const {
    int64_t wrong = 0;
    for (const auto& memory : memories_) wrong += memory->CountWrong(placement, residency_);
    return wrong;
  }
  std::vector<std::vector<std::vector<std::byte>>> Snapshot() const {
    std::vector<std::vector<std::vector<std::byte>>> all;
    for (const auto& memory : memories_) all.push_back(memory->bytes());
    return all;
  }

  MigrationPlan Plan(const Placement& current, const Placement& target) const {
    const auto plan = PlanMigration(current, target, {}, executors_.front()->migration_options());
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  }

  // Every rank stages on its own thread; a rank in `absent` does not.
  std::vector<absl::StatusOr<Executor::Staged>> Stage(const MigrationPlan& plan, uint64_t post_id,
                                                      int32_t absent = -1,
                                                      absl::Duration timeout = absl::Seconds(30)) {
    std::vector<absl::StatusOr<Executor::Staged>> results(num_ranks(), Executor::Staged{});
    RunRanks(num_ranks(), [&](int32_t rank) {
      if (rank != absent) {
        results[rank] =
            executors_[rank]->Stage(plan, {.post_id = post_id, .deadline = absl::Now() + timeout});
      }
    });
    return results;
  }
  void Commit() {
    for (auto& executor : executors_) EXPECT_TRUE(executor->Commit().ok());
  }
  void Discard() {
    for (auto& executor : executors_) executor->Discard();
  }

 private:
  const Topology topology_;
  const StateResidency residency_;
  const int32_t num_lanes_;
  std::vector<std::unique_ptr<ExpertMemory>> memories_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

struct Kind {
  const char* name;
  MakeWorld make;
  StateResidency residency;
};

class ExecutorTest : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(
    Kinds, ExecutorTest,
    ::testing::Values(
        Kind{"InprocEveryReplica", MakeInproc, StateResidency::kEveryReplica},
        Kind{"InprocWithPrimary", MakeInproc, StateResidency::kWithPrimary},
        Kind{"SharedEveryReplica", MakeSharedMemoryWorld, StateResidency::kEveryReplica},
        Kind{"SharedWithPrimary", MakeSharedMemoryWorld, StateResidency::kWithPrimary},
        Kind{"PeerEveryReplica", MakePeerWorld, StateResidency::kEveryReplica},
        Kind{"PeerWithPrimary", MakePeerWorld, StateResidency::kWithPrimary},
        Kind{"TcpWithPrimary", MakeTcpWorld, StateResidency::kWithPrimary}),
    [](const auto& kind) { return kind.param.name; });

TEST_P(ExecutorTest, EverySlotHoldsWhatTheTargetSaysAfterRandomSwitches) {
  const uint32_t seed = 20240518;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const auto& [gpus, experts, slots] : std::vector<std::array<int32_t, 3>>{
           {1, 4, 6}, {2, 4, 4}, {3, 6, 8}, {4, 8, 12}, {8, 16, 19}}) {
    const Topology topology = MakeTopology(3, experts, slots, gpus);
    Lane lane(topology, GetParam().residency, GetParam().make);
    Placement current = RandomPlacement(random, topology);
    lane.Fill(current);
    for (uint64_t version = 1; version <= 4; ++version) {
      const Placement target = RandomPlacement(random, topology);
      const MigrationPlan plan = lane.Plan(current, target);
      int64_t sent = 0;
      int64_t received = 0;
      const auto before = lane.Snapshot();
      for (const auto& staged : lane.Stage(plan, version)) {
        ASSERT_TRUE(staged.ok()) << staged.status();
        sent += staged->sent_bytes;
        received += staged->received_bytes;
      }
      EXPECT_EQ(sent, plan.link_bytes);
      EXPECT_EQ(received, plan.link_bytes);
      EXPECT_EQ(lane.Snapshot(), before) << "a slot was written before the commit";
      lane.Commit();
      EXPECT_EQ(lane.CountWrong(target), 0) << gpus << " GPUs, version " << version;
      current = target;
    }
  }
}

TEST_P(ExecutorTest, DiscardLeavesSlotsAndTheNextPlanWorks) {
  std::mt19937 random(5);
  const Topology topology = MakeTopology(2, 8, 9, 4);
  Lane lane(topology, GetParam().residency, GetParam().make);
  const Placement current = RandomPlacement(random, topology);
  lane.Fill(current);
  const auto before = lane.Snapshot();
  const MigrationPlan dropped = lane.Plan(current, RandomPlacement(random, topology));
  for (const auto& staged : lane.Stage(dropped, 1)) ASSERT_TRUE(staged.ok()) << staged.status();
  lane.Discard();
  lane.Commit();  // nothing is staged any more
  EXPECT_EQ(lane.Snapshot(), before);
  const Placement target = RandomPlacement(random, topology);
  for (const auto& staged : lane.Stage(lane.Plan(current, target), 2)) {
    ASSERT_TRUE(staged.ok()) << staged.status();
  }
  lane.Commit();
  EXPECT_EQ(lane.CountWrong(target), 0);
}

TEST_P(ExecutorTest, SilentRankIsNamedNoSlotChangesAndTheNextPlanWorks) {
  std::mt19937 random(6);
  const Topology topology = MakeTopology(2, 9, 9, 3);
  Lane lane(topology, GetParam().residency, GetParam().make);
  const Placement current = RandomPlacement(random, topology);
  lane.Fill(current);
  const auto before = lane.Snapshot();
  const Placement target = RandomPlacement(random, topology);
  const MigrationPlan plan = lane.Plan(current, target);
  const auto results = lane.Stage(plan, 1, /*absent=*/1, absl::Milliseconds(150));
  for (const int32_t rank : {0, 2}) {
    EXPECT_EQ(results[rank].status().code(), absl::StatusCode::kDeadlineExceeded);
    const std::string text(results[rank].status().message());
    EXPECT_THAT(text, HasSubstr("rank 1 ")) << "and nobody else";
  }
  EXPECT_EQ(lane.Snapshot(), before);
  lane.Discard();
  for (const auto& staged : lane.Stage(plan, 2)) ASSERT_TRUE(staged.ok()) << staged.status();
  lane.Commit();
  EXPECT_EQ(lane.CountWrong(target), 0);
}

TEST_P(ExecutorTest, RowsStayInsideTheirLane) {
  std::mt19937 random(7);
  const Topology topology = MakeTopology(2, 6, 6, 3);
  Lane lanes(topology, GetParam().residency, GetParam().make, /*num_lanes=*/2);
  const Placement current = RandomPlacement(random, topology);
  const Placement target = RandomPlacement(random, topology);
  lanes.Fill(current);
  const auto results = lanes.Stage(lanes.Plan(current, target), 1);
  for (int32_t gpu = 0; gpu < 3; ++gpu) {
    ASSERT_TRUE(results[gpu].ok() && results[gpu + 3].ok());
    EXPECT_EQ(results[gpu]->sent_bytes, results[gpu + 3]->sent_bytes);
  }
  lanes.Commit();
  EXPECT_EQ(lanes.CountWrong(target), 0);
}

TEST(ExecutorFaultTest, FlippedByteFailsTheStageAndNoSlotChanges) {
  std::mt19937 random(8);
  const Topology topology = MakeTopology(2, 8, 8, 4);
  InprocFaults faults;
  faults.after_copy = [](RankId, RankId to, int32_t row, std::span<std::byte> staged) {
    if (to == RankId{2} && row == 1) staged.back() ^= std::byte{4};
  };
  Lane lane(topology, StateResidency::kEveryReplica,
            [&](int32_t n, int64_t bytes) { return *MakeInprocTransports(n, bytes, faults); });
  const Placement current = RandomPlacement(random, topology);
  lane.Fill(current);
  const auto before = lane.Snapshot();
  const MigrationPlan plan = lane.Plan(current, RandomPlacement(random, topology));
  const auto results = lane.Stage(plan, 1);
  EXPECT_EQ(results[2].status().code(), absl::StatusCode::kDataLoss) << results[2].status();
  EXPECT_THAT(std::string(results[2].status().message()), HasSubstr("row 1"));
  lane.Discard();
  EXPECT_EQ(lane.Snapshot(), before);
}

TEST(ExecutorFaultTest, PlanAboveStagingIsResourceExhaustedBeforeAnythingMoves) {
  std::mt19937 random(9);
  const Topology topology = MakeTopology(4, 12, 12, 3);
  Lane lane(topology, StateResidency::kEveryReplica, MakeInproc, 1, /*layers_per_chunk=*/1);
  const Placement current = RandomPlacement(random, topology);
  lane.Fill(current);
  const MigrationPlan plan = lane.Plan(current, RandomPlacement(random, topology));
  const absl::Status status = lane.executor(0).CheckFits(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("are missing"));
  for (const auto& staged : lane.Stage(plan, 1)) {
    EXPECT_EQ(staged.status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(lane.CountWrong(current), 0);
}

TEST(ExecutorFaultTest, OneLayerChunksFitStagingOfOneLayer) {
  std::mt19937 random(10);
  const Topology topology = MakeTopology(4, 12, 14, 3);
  Lane lane(topology, StateResidency::kWithPrimary, MakeInproc, 1, /*layers_per_chunk=*/1);
  Placement current = RandomPlacement(random, topology);
  lane.Fill(current);
  const Placement target = RandomPlacement(random, topology);
  const auto chunks = CutIntoChunks(current, target, 1);
  ASSERT_TRUE(chunks.ok());
  uint64_t version = 0;
  for (const Chunk& chunk : *chunks) {
    const MigrationPlan plan = lane.Plan(current, chunk.after);
    for (int32_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(lane.executor(rank).CheckFits(plan).ok());
    for (const auto& staged : lane.Stage(plan, ++version)) {
      ASSERT_TRUE(staged.ok()) << staged.status();
    }
    lane.Commit();
    EXPECT_EQ(lane.CountWrong(chunk.after), 0);
    current = chunk.after;
  }
  EXPECT_EQ(current, target);
}

TEST(ExecutorFaultTest, SecondStageNeedsACommitOrADiscard) {
  const Topology topology = MakeTopology(1, 2, 2, 1);
  Lane lane(topology, StateResidency::kEveryReplica, MakeInproc);
  const MigrationPlan plan = lane.Plan(Placement::Static(topology), Placement::Static(topology));
  ASSERT_TRUE(lane.Stage(plan, 1)[0].ok());
  EXPECT_EQ(lane.Stage(plan, 2)[0].status().code(), absl::StatusCode::kFailedPrecondition);
  lane.Discard();
  EXPECT_TRUE(lane.Stage(plan, 2)[0].ok());
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

}  // namespace
}  // namespace eplb
