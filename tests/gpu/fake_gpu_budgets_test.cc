// Budgets of a migration over the path between GPUs: calls of CUDA, passes over the GPUs'
// memory, and no memory taken or given back between steps. On the stand-in, which counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "client/rows/replica_rows.h"
#include "client/rows/square_sums.h"
#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/replica_contract.h"
#include "tests/gpu/arena_world.h"
#include "tests/gpu/device_queue.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb {
namespace {

using ::testing::Each;

constexpr int32_t kBudgetRanks = 4;
constexpr int32_t kBudgetLayers = 3;
constexpr int32_t kSlotsOfAGpu = 3;
constexpr int32_t kMigrations = 3;

Transports MakeCountedWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeArenaWorld(world_size, staging_bytes);
}

// Large enough that tables and checksums, 48 bytes a row, do not show in passes.
std::vector<TensorShape> CountedShapes() {
  return {
      {.name = "w13", .role = TensorRole::kWeight, .row_bytes = 150'000, .row_stride = 150'000},
      {.name = "w2", .role = TensorRole::kWeight, .row_bytes = 70'001, .row_stride = 70'016},
      {.name = "moment", .role = TensorRole::kState, .row_bytes = 20'000, .row_stride = 20'000}};
}

// Every expert `turns` GPUs further than in the static placement.
Placement TurnedPlacement(const Topology& topology, int32_t turns) {
  const int32_t slots = topology.num_slots();
  IndexMatrix map(topology.num_layers(), slots);
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    for (int32_t slot = 0; slot < slots; ++slot) {
      map(layer, (slot + turns * kSlotsOfAGpu) % slots) = slot;
    }
  }
  return *Placement::FromSlotsAndRanks(topology, map,
                                       IndexMatrix::Zero(topology.num_layers(), slots));
}

class GpuBudgetsTest : public ::testing::Test {
 protected:
  static constexpr int32_t kExperts = kBudgetRanks * kSlotsOfAGpu;

  GpuBudgetsTest() {
    fake_cuda::SetSeed(0);
    ep_group_.Fill(TurnedPlacement(topology_, 0));
  }

  // The next turn. Every row goes to another GPU and into one slot there.
  void Migrate() {
    const Placement target = TurnedPlacement(topology_, turns_ + 1);
    const MigrationPlan plan = ep_group_.Plan(TurnedPlacement(topology_, turns_), target);
    migrated_bytes_ += plan.link_bytes;
    for (const auto& staged : ep_group_.Stage(plan, static_cast<uint64_t>(++turns_))) {
      ASSERT_TRUE(staged.ok()) << staged.status();
    }
    ep_group_.Commit();
  }

  const Topology topology_ = MakeTopology(kBudgetLayers, kExperts, kExperts, kBudgetRanks);
  EpGroup ep_group_{topology_,
                    StateResidency::kEveryReplica,
                    &MakeCountedWorld,
                    {.make_queue = &MakeDeviceQueue, .shapes = CountedShapes()}};
  int32_t turns_ = 0;
  int64_t migrated_bytes_ = 0;
};

TEST_F(GpuBudgetsTest, AMigrationMakesFewCallsAndFivePassesAndTakesNoMemory) {
  const int64_t allocations = fake_cuda::NumAllocations();
  const fake_cuda::Usage before = fake_cuda::UsageOfAll();
  for (int32_t i = 0; i < kMigrations; ++i) Migrate();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the last commit
  const fake_cuda::Usage after = fake_cuda::UsageOfAll();
  EXPECT_EQ(fake_cuda::NumAllocations(), allocations);

  const int64_t num_rows =
      kMigrations * int64_t{kBudgetLayers} * kExperts * std::ssize(CountedShapes());
  ASSERT_EQ(migrated_bytes_, num_rows / 3 * (150'000 + 70'001 + 20'000));
  // Calls of a rank's boundary: streams that follow each other, and the commit with its table.
  constexpr int64_t kCallsOfABoundary = 16;
  EXPECT_LE(after.num_enqueued - before.num_enqueued,
            3 * num_rows + int64_t{kMigrations} * kBudgetRanks * kCallsOfABoundary);
  // The sender reads; the receiver's memory is written, read for the sum, and read and written by
  // the commit.
  const int64_t touched =
      after.read_bytes - before.read_bytes + after.written_bytes - before.written_bytes;
  constexpr int64_t kTableBytesOfARow = int64_t{3} * 48;  // sent, summed, committed
  EXPECT_GE(touched, 5 * migrated_bytes_);
  EXPECT_LE(touched, 5 * migrated_bytes_ + num_rows * kTableBytesOfARow);
  EXPECT_EQ(ep_group_.CountWrong(TurnedPlacement(topology_, turns_)), 0);
}

TEST_F(GpuBudgetsTest, ACommitIsOneTableOneKernelAndNoChecksums) {
  const Placement target = TurnedPlacement(topology_, 1);
  for (const auto& staged :
       ep_group_.Stage(ep_group_.Plan(TurnedPlacement(topology_, 0), target), 1)) {
    ASSERT_TRUE(staged.ok()) << staged.status();
  }
  const fake_cuda::Usage before = fake_cuda::UsageOfAll();
  ep_group_.Commit();
  // Table, kernel, event; and the event that the trainer's stream waits for.
  EXPECT_EQ(fake_cuda::UsageOfAll().num_enqueued - before.num_enqueued, kBudgetRanks * 5);
  EXPECT_EQ(ep_group_.CountWrong(target), 0);
}

TEST(GpuSquaresBudgetTest, SumsOfSquaresTakeNoMemoryOnceItIsReserved) {
  fake_cuda::SetSeed(0);
  constexpr int64_t kStaging = 1 << 14;
  std::mt19937 placements(3);
  std::mt19937_64 random(3);
  const Topology topology =
      *Topology::Make({.num_layers = 3, .num_experts = 6, .num_slots = 9, .num_gpus = 3});
  ReplicaGroup ep_group(RandomPlacement(placements, topology),
                        TransportKind(&MakeCountedWorld, &MakeDeviceQueue), kStaging);
  ep_group.Fill(random);
  std::vector<ExpertSquareSums> sums(3);
  EXPECT_THAT(ep_group.Run([&](int32_t rank, EpGroupCall& call) {
    return sums[static_cast<size_t>(rank)].Reserve(topology, 3, kStaging, call.carrier.queue());
  }),
              Each(absl::OkStatus()));
  const int64_t allocations = fake_cuda::NumAllocations();
  // Fewer layers first: their sums are smaller, and arrive from more ranks at a time.
  for (const size_t num_layers : {1, 3, 2}) {
    EXPECT_THAT(ep_group.Run([&](int32_t rank, EpGroupCall& call) {
      const std::span<const ReplicaTensor> all = ep_group.tensors(rank);
      return sums[static_cast<size_t>(rank)]
          .Sum(all.first(all.size() / 3 * num_layers), call)
          .status();
    }),
                Each(absl::OkStatus()));
  }
  EXPECT_EQ(fake_cuda::NumAllocations(), allocations);
}

}  // namespace
}  // namespace eplb
