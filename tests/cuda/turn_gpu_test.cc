#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

#include "cuda/runtime.h"
#include "cuda/turn.h"
#include "tests/cuda/count_case.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"

namespace eplb::cuda {
namespace {

using testing::OnDevice;

template <class ExpertId>
class LaunchTurnTest : public ::testing::Test {
 protected:
  void SetUp() override { EPLB_REQUIRE_GPU_OR_SKIP(); }

  // Turns in place and apart, and counts twice, by a weight of 0, of 1 and without one.
  void CheckShape(const testing::CountShape& shape, uint64_t seed) {
    const auto c = testing::MakeCountCase<ExpertId>(shape, seed);
    std::vector<int64_t> slot_of_expert;
    for (int32_t expert = 0; expert <= shape.num_experts; ++expert) {
      slot_of_expert.push_back(2 * ((expert + 3) % shape.num_experts));
    }
    slot_of_expert.back() = -1;
    const std::vector<int64_t> weights = {0, 1};
    std::vector<int64_t> counts(static_cast<size_t>(shape.num_experts) + 1);
    std::vector<ExpertId> slots(c.ids.size());
    TurnArgs on_host{.choices = testing::ArgsOf(c),
                     .slot_of_expert = slot_of_expert.data(),
                     .slots = slots.data()};
    on_host.choices.counts = counts.data();
    on_host.choices.out_of_range = counts.data() + shape.num_experts;

    const OnDevice<ExpertId> ids(c.ids);
    const OnDevice<ExpertId> apart(slots);
    const OnDevice<uint8_t> is_padding(c.is_padding);
    const OnDevice<int64_t> table(slot_of_expert);
    const OnDevice<int64_t> device_weights(weights);
    const OnDevice<int64_t> counters(counts);
    TurnArgs args = on_host;
    args.choices.expert_ids = ids.data();
    if (shape.masked) args.choices.is_padding = is_padding.data();
    args.choices.counts = counters.data();
    args.choices.out_of_range = counters.data() + shape.num_experts;
    args.slot_of_expert = table.data();
    const auto stream = MakeStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    for (const int turn : {0, 1, 2}) {
      args.weight = turn == 2 ? nullptr : device_weights.data() + turn;
      on_host.weight = turn == 2 ? nullptr : weights.data() + turn;
      args.slots = turn == 2 ? ids.data() : apart.data();
      ASSERT_TRUE(LaunchTurn(args, stream->get()).ok());
      ASSERT_TRUE(TurnOnHost(on_host).ok());
    }
    ASSERT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
    EXPECT_EQ(apart.Read(), slots);
    EXPECT_EQ(ids.Read(), slots);
    EXPECT_EQ(counters.Read(), counts);
  }
};
using ExpertIds = ::testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(LaunchTurnTest, ExpertIds);

TYPED_TEST(LaunchTurnTest, HasTheBitsOfTheHost) {
  constexpr uint64_t kSeed = 130;
  std::vector<testing::CountShape> shapes = testing::CountShapes();
  shapes.push_back({10007, 4, 20000, false});  // a histogram too large for shared memory
  for (const testing::CountShape& shape : shapes) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " tokens ", shape.num_tokens, " top_k ", shape.top_k,
                              " experts ", shape.num_experts, " masked ", shape.masked));
    this->CheckShape(shape, kSeed);
    if (this->HasFailure()) return;
  }
}

}  // namespace
}  // namespace eplb::cuda
