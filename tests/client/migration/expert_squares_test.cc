// Sums over every transport are in replica_contract.cc.
#include "client/migration/expert_squares.h"

#include <gtest/gtest.h>

#include <vector>

#include "placement/topology.h"

namespace eplb {
namespace {

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
