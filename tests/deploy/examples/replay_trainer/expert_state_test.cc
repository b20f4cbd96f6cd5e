#include "deploy/examples/replay_trainer/expert_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

namespace eplb {
namespace {

using ::testing::HasSubstr;

// Two layers, four slots on two GPUs; this rank holds slots 2 and 3.
struct Rank {
  std::vector<int32_t> map = {0, 1, 2, 3, 3, 2, 1, 0};
  PlacementView placement{.num_layers = 2,
                          .num_experts = 4,
                          .num_slots = 4,
                          .first_local_slot = 2,
                          .num_local_slots = 2,
                          .physical_to_logical_map = map};
  ExpertState state{{.num_layers = 2, .num_local_slots = 2, .num_parameters = 33}};

  void Run(int64_t steps) {
    state.Initialise(placement);
    for (int64_t step = 0; step < steps; ++step) state.Update(step, placement);
  }
};

std::byte* Row(const ExpertTensorView& tensor, int32_t row) {
  return static_cast<std::byte*>(tensor.base) + row * tensor.row_stride;
}

TEST(ExpertStateTest, RecomputationGivesTheSameBytes) {
  Rank rank;
  rank.Run(20);
  const absl::StatusOr<int64_t> bytes = rank.state.Verify(19, rank.placement);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, 2 * 2 * 33 * 14);
}

TEST(ExpertStateTest, EveryTensorOfEveryLayerIsRegistered) {
  Rank rank;
  const std::vector<ExpertTensorView> tensors = rank.state.Tensors();
  ASSERT_EQ(tensors.size(), 8u);
  EXPECT_EQ(tensors[4].name, "layers.1.weight");
  EXPECT_EQ(tensors[4].row_bytes, 33 * 2);
  EXPECT_EQ(tensors[7].row_bytes, 33 * 4);
}

TEST(ExpertStateTest, OneFlippedBitInAnyTensorIsFound) {
  for (size_t tensor = 0; tensor < 8; ++tensor) {
    Rank rank;
    rank.Run(5);
    *Row(rank.state.Tensors()[tensor], 1) ^= std::byte{1};
    const absl::Status status = rank.state.Verify(4, rank.placement).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << tensor;
    EXPECT_THAT(std::string(status.message()), HasSubstr("slot 3"));
  }
}

TEST(ExpertStateTest, AStaleRowIsFound) {
  Rank rank;
  rank.Run(5);
  EXPECT_FALSE(rank.state.Verify(5, rank.placement).ok());
}

TEST(ExpertStateTest, SwappedExpertsAreFound) {
  Rank rank;
  rank.Run(5);
  std::swap(rank.map[2], rank.map[3]);
  const absl::Status status = rank.state.Verify(4, rank.placement).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("layer 0 slot 2 should hold expert 3, its weight differs"));
}

TEST(ExpertStateTest, AMovedExpertGoesOnAsIfItHadAlwaysBeenThere) {
  Rank rank;
  rank.Run(5);
  // Swap the two local rows of layer 0, memory and map alike.
  for (const ExpertTensorView& tensor : rank.state.Tensors()) {
    if (tensor.layer != 0) continue;
    std::vector<std::byte> row(static_cast<size_t>(tensor.row_bytes));
    std::memcpy(row.data(), Row(tensor, 0), row.size());
    std::memcpy(Row(tensor, 0), Row(tensor, 1), row.size());
    std::memcpy(Row(tensor, 1), row.data(), row.size());
  }
  std::swap(rank.map[2], rank.map[3]);
  for (int64_t step = 5; step < 9; ++step) rank.state.Update(step, rank.placement);
  EXPECT_TRUE(rank.state.Verify(8, rank.placement).ok());
}

}  // namespace
}  // namespace eplb
