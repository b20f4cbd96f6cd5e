#include "client/rows/replica_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "client/rows/square_sums.h"
#include "client/rows/staging.h"
#include "placement/topology.h"
#include "tests/client/rows/expert_world.h"
#include "tests/client/rows/paths/host_world.h"
#include "tests/client/rows/paths/peer_world.h"
#include "tests/client/rows/replica_contract.h"

namespace eplb {

namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

Topology Small(int32_t slots = 6) {
  return Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = slots, .num_gpus = 2})
      .value();
}

ReplicaTensor Rows(int32_t layer, int64_t row_bytes, const char* name = "w1") {
  static std::byte memory[1 << 16];
  return {.rows = {.name = name,
                   .layer = LayerId{layer},
                   .base = memory,
                   .num_rows = 3,
                   .row_bytes = row_bytes,
                   .row_stride = row_bytes}};
}

absl::StatusOr<std::vector<ReplicaPost>> Plan(const Placement& placement, int32_t gpu,
                                              const std::vector<ReplicaTensor>& tensors,
                                              int64_t staging_bytes,
                                              ReplicaFlow flow = ReplicaFlow::kToPrimary) {
  return PlanReplicaPosts(placement, GpuId{gpu}, tensors, flow, staging_bytes,
                          /*first_row=*/kMaxReplicaRows);
}

TEST(PlanReplicaPostsTest, EachReplicaGoesToItsPrimary) {
  // Slots 0..3 hold experts 0..3, slots 4 and 5 experts 0 and 1; GPU 0 has slots 0..2.
  const std::vector<ReplicaTensor> tensors = {Rows(1, 100)};
  const auto posts = Plan(Placement::Static(Small()), 0, tensors, 1 << 16);
  ASSERT_TRUE(posts.ok()) << posts.status();
  ASSERT_THAT(*posts, SizeIs(1));
  const std::vector<ReplicaMove>& moves = posts->front().moves;
  ASSERT_THAT(moves, SizeIs(2));
  EXPECT_TRUE(posts->front().has_links);
  for (int32_t i = 0; i < 2; ++i) {
    const ReplicaMove& move = moves[static_cast<size_t>(i)];
    EXPECT_EQ(move.source, SlotId{4 + i});
    EXPECT_EQ(move.destination, SlotId{i});
    EXPECT_EQ(move.replica, 1);
    EXPECT_EQ(move.round, i);
    EXPECT_EQ(move.offset, i * 128);
  }
  const auto back =
      Plan(Placement::Static(Small()), 1, tensors, 1 << 16, ReplicaFlow::kFromPrimary);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->front().moves[1].source, SlotId{1});
  EXPECT_EQ(back->front().moves[1].destination, SlotId{5});
}

TEST(PlanReplicaPostsTest, WithoutReplicasThereIsNoPost) {
  const auto posts = Plan(Placement::Static(Small(4)), 0, {Rows(0, 100), Rows(1, 100)}, 1 << 16);
  ASSERT_TRUE(posts.ok()) << posts.status();
  EXPECT_THAT(*posts, IsEmpty());
}

TEST(PlanReplicaPostsTest, ARowLargerThanStagingIsRefusedByName) {
  EXPECT_EQ(Plan(Placement::Static(Small()), 0, {Rows(0, 129, "gradient")}, 128).status(),
            absl::ResourceExhaustedError("tensor \"gradient\": a row of 129 bytes is larger than "
                                         "the staging of 128 bytes"));
}

// A rank's part of the world's traffic, seen from all sides.
TEST(PlanReplicaPostsTest, AllRanksAgreeAndEveryPostFitsWithOneSendAndReceiveARound) {
  constexpr uint32_t kSeed = 5;
  std::mt19937 random(kSeed);
  for (int32_t trial = 0; trial < 50; ++trial) {
    const int32_t gpus = 1 + static_cast<int32_t>(random() % 6);
    const int32_t experts = 1 + static_cast<int32_t>(random() % 8);
    const int32_t slots = std::max(experts, gpus) + static_cast<int32_t>(random() % 12);
    const Topology topology =
        Topology::Make(
            {.num_layers = 2, .num_experts = experts, .num_slots = slots, .num_gpus = gpus})
            .value();
    const Placement placement = RandomPlacement(random, topology);
    const std::vector<ReplicaTensor> tensors = {Rows(1, 500), Rows(0, 77), Rows(1, 64)};
    constexpr int64_t kStaging = 1024;
    std::vector<std::vector<ReplicaPost>> ranks;
    for (int32_t gpu = 0; gpu < gpus; ++gpu) {
      ranks.push_back(Plan(placement, gpu, tensors, kStaging).value());
      ASSERT_EQ(ranks.back().size(), ranks[0].size()) << "seed " << kSeed;
    }
    std::set<std::tuple<const ReplicaTensor*, int32_t>> arrived;  // by source
    for (size_t post = 0; post < ranks[0].size(); ++post) {
      std::map<std::pair<int32_t, int32_t>, int32_t> receiver_of, sender_of;  // (GPU, round)
      std::map<int32_t, int64_t> next_offset;
      for (int32_t gpu = 0; gpu < gpus; ++gpu) {
        EXPECT_EQ(ranks[static_cast<size_t>(gpu)][post].has_links, ranks[0][post].has_links);
        for (const ReplicaMove& move : ranks[static_cast<size_t>(gpu)][post].moves) {
          const int32_t from = topology.GpuOf(move.source).value;
          const int32_t to = topology.GpuOf(move.destination).value;
          ASSERT_EQ(move.round >= 0, from != to);
          if (to != gpu) continue;
          arrived.insert({move.tensor, move.source.value});
          if (from == to) continue;
          ASSERT_EQ(receiver_of.try_emplace({from, move.round}, to).first->second, to);
          ASSERT_EQ(sender_of.try_emplace({to, move.round}, from).first->second, from);
          ASSERT_EQ(move.offset, next_offset[to]);
          next_offset[to] += RoundUpToStaging(move.tensor->rows.row_bytes);
          ASSERT_LE(next_offset[to], kStaging);
        }
      }
    }
    EXPECT_EQ(std::ssize(arrived), std::ssize(tensors) * (slots - experts)) << "seed " << kSeed;
  }
}

TEST(CheckReplicaTensorsTest, RefusalNamesTheTensor) {
  const auto check = [](const ReplicaTensor& tensor, ReplicaFlow flow = ReplicaFlow::kToPrimary) {
    return CheckReplicaTensors(Small(), GpuId{0}, {&tensor, 1}, flow);
  };
  EXPECT_TRUE(check(Rows(1, 100)).ok());
  EXPECT_EQ(check(Rows(2, 100)).message(), "tensor \"w1\": layer 2 is not in 0..1");
  EXPECT_EQ(check(Rows(1, 99)).message(),
            "tensor \"w1\": row_bytes is 99, expected a multiple of the element's 4");
  EXPECT_TRUE(check(Rows(1, 99), ReplicaFlow::kFromPrimary).ok()) << "weights are any bytes";
  const std::vector<ReplicaTensor> twice = {Rows(1, 100), Rows(1, 100, "again")};
  EXPECT_THAT(
      std::string(CheckReplicaTensors(Small(), GpuId{0}, twice, ReplicaFlow::kToPrimary).message()),
      ::testing::HasSubstr("shares 100 bytes with local slot 0 of"));
}

INSTANTIATE_TEST_SUITE_P(Shared, ReplicaContractTest, ::testing::Values(&MakeSharedMemoryWorld));
INSTANTIATE_TEST_SUITE_P(Tcp, ReplicaContractTest, ::testing::Values(&MakeTcpWorld));
INSTANTIATE_TEST_SUITE_P(Peer, ReplicaContractTest, ::testing::Values(&MakePeerWorld));

// Sums over every transport are in replica_contract.cc.

// 12 slots on 3 GPUs: 4 sums for each layer and rank.
Topology SquaresTopology(int32_t gpus) {
  return Topology::Make({.num_layers = 20, .num_experts = 12, .num_slots = 12, .num_gpus = gpus})
      .value();
}

std::vector<ReplicaTensor> TensorsOf(int32_t layers) {
  std::vector<ReplicaTensor> tensors;
  for (int32_t layer = 0; layer < layers; ++layer) {
    for (const char* name : {"w1", "w2"}) {
      tensors.push_back({.rows = {.name = name, .layer = LayerId{layer}}});
    }
  }
  return tensors;
}

TEST(ExpertSquaresTest, SumsOfALayerTakeOneDoubleForEachSlotHoweverManyTensorsItHas) {
  EXPECT_TRUE(CheckSquaresFit(SquaresTopology(3), TensorsOf(2), 64).ok());
  EXPECT_EQ(CheckSquaresFit(SquaresTopology(3), TensorsOf(3), 64),
            absl::ResourceExhaustedError("the sums of 3 layers are 96 bytes, the staging has 64; "
                                         "raise layers_per_chunk or give fewer layers at once"));
}

TEST(ExpertSquaresTest, SumsLieOnWholeLinesOfStaging) {
  EXPECT_EQ(CheckSquaresFit(SquaresTopology(3), TensorsOf(3), 127).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(CheckSquaresFit(SquaresTopology(3), TensorsOf(3), 128).ok());
}

TEST(ExpertSquaresTest, OneGpuAndNoTensorsNeedNoStaging) {
  EXPECT_TRUE(CheckSquaresFit(SquaresTopology(1), TensorsOf(20), 0).ok());
  EXPECT_TRUE(CheckSquaresFit(SquaresTopology(3), {}, 0).ok());
}

}  // namespace

}  // namespace eplb
