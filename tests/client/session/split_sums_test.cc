#include "client/session/split_sums.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace eplb {
namespace {

Topology FourSlots() {
  return *Topology::Make({.num_layers = 2, .num_experts = 3, .num_slots = 4, .num_gpus = 2});
}

TEST(SplitSumsTest, AreOfTheFullestGpuAlsoUnderOtherLayouts) {
  IndexMatrix slots(2, 4);
  slots << 0, 1, 2, 2, 1, 0, 2, 0;
  const Placement placement = *Placement::FromSlots(FourSlots(), slots);
  const auto sums = [&placement](int32_t layer, const std::vector<int64_t>& quotas) {
    const SplitSums of = *SumsOfSplit(layer, quotas, placement);
    return std::vector<int64_t>{of.tokens, of.peak, of.peak_static, of.peak_without_eplb};
  };
  // Experts have 1, 2 and 5 tokens. Statically GPU 0 has 1 + 2, GPU 1 has 5 and none of expert 0.
  // With one slot each, experts 0 and 1 are on GPU 0 and expert 2 is on GPU 1.
  EXPECT_EQ(sums(0, {1, 2, 3, 2}), (std::vector<int64_t>{8, 5, 5, 5}));
  // Experts have 9, 0 and 2 tokens. Statically GPU 0 has 5, GPU 1 has 2 + 4.
  EXPECT_EQ(sums(0, {9, 0, 1, 1}), (std::vector<int64_t>{11, 9, 6, 9}));
  // Experts have 2, 4 and 0 tokens: in this layer slots 1 and 3 hold expert 0.
  EXPECT_EQ(sums(1, {4, 1, 0, 1}), (std::vector<int64_t>{6, 5, 5, 6}));
}

TEST(SplitSumsTest, ASplitThatDoesNotFitIsNamed) {
  const Placement placement = Placement::Static(FourSlots());
  const auto error = [&placement](int32_t layer, const std::vector<int64_t>& quotas) {
    const absl::Status status = SumsOfSplit(layer, quotas, placement).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(error(2, {0, 0, 0, 0}), "quotas of layer 2, expected 0..1");
  EXPECT_EQ(error(0, {0, 0, 0}), "layer 0: 3 quotas, the model has 4 slots");
  EXPECT_EQ(error(1, {0, 3, -2, 0}), "layer 1 slot 2: quota -2, expected >= 0");
  EXPECT_EQ(error(1, {kMost, 1, 0, 0}), "layer 1 slot 1: the batch's tokens exceed 2^63-1");
}

}  // namespace
}  // namespace eplb
