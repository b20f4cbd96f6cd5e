#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

#include "cuda/count.h"
#include "cuda/quota_route.h"
#include "cuda/runtime.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/quota_route_case.h"
#include "tests/cuda/require_gpu.h"

namespace eplb::cuda {
namespace {

using testing::OnDevice;

template <class ExpertId>
class LaunchQuotaRouteTest : public testing::StreamTest<> {};
using QuotaRouteGpuIds = ::testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(LaunchQuotaRouteTest, QuotaRouteGpuIds);

// Twice from one captured graph: the second launch finds what the first left in the chunk counts.
TYPED_TEST(LaunchQuotaRouteTest, EqualsThePlainReferenceAtEachLaunchOfAGraph) {
  ASSERT_TRUE(LoadCountKernels().ok() && LoadQuotaRouteKernels().ok());
  constexpr uint64_t kSeed = 440;
  std::vector<testing::CountShape> shapes = testing::CountShapes();
  shapes.push_back({std::min<int64_t>(testing::ManyTokens(), 131'072), 8, 256, true});
  shapes.push_back(
      {300, 8, 1500, true});  // shared memory has counters of few warps: turns of a block
  for (const testing::CountShape& shape : shapes) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " tokens ", shape.num_tokens, " top_k ", shape.top_k,
                              " masked ", shape.masked));
    const auto c = testing::MakeQuotaRouteCase<TypeParam>(shape, kSeed);
    if (shape.num_tokens == 0) continue;  // a graph of nothing
    QuotaRouteArgs args = c.Args();
    CountArgs& choices = args.choices;
    const OnDevice<TypeParam> ids(c.choices.ids);
    const OnDevice<uint8_t> is_padding(c.choices.is_padding);
    const OnDevice<int32_t> first_slot(c.first_slot);
    const OnDevice<int32_t> replica_slot(c.replica_slot);
    const OnDevice<int64_t> own(c.own);
    const OnDevice<TypeParam> slots(std::vector<TypeParam>(c.slots.size()));
    const OnDevice<int64_t> beyond(std::vector<int64_t>(1));
    const OnDevice<int32_t> chunks(
        std::vector<int32_t>(static_cast<size_t>(ChunkCountsBytes(choices)) / sizeof(int32_t), -5));
    const OnDevice<int64_t> counters(std::vector<int64_t>(c.choices.counts.size() + 1));
    choices.expert_ids = ids.data();
    choices.counts = counters.data();
    choices.out_of_range = counters.data() + shape.num_experts;
    choices.chunk_counts = chunks.data();
    if (shape.masked) choices.is_padding = is_padding.data();
    args.first_slot = first_slot.data();
    args.replica_slot = replica_slot.data();
    args.own = own.data();
    args.slots = slots.data();
    args.beyond = beyond.data();
    const auto count_and_route = [&](cudaStream_t stream) {
      absl::Status launched = LaunchCount(choices, stream);
      launched.Update(LaunchQuotaRoute(args, stream));
      return launched;
    };
    const testing::GraphExec graph = testing::Capture(this->stream_.get(), count_and_route);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(cudaGraphLaunch(graph.get(), this->stream_.get()), cudaSuccess);
    }
    ASSERT_EQ(cudaStreamSynchronize(this->stream_.get()), cudaSuccess);
    EXPECT_EQ(slots.Read(), c.slots);
    EXPECT_EQ(beyond.Read().front(), 2 * c.beyond);
    args.slots = ids.data();
    ASSERT_TRUE(count_and_route(this->stream_.get()).ok());
    ASSERT_EQ(cudaStreamSynchronize(this->stream_.get()), cudaSuccess);
    EXPECT_EQ(ids.Read(), c.slots) << "in place";
    if (this->HasFailure()) return;
  }
}

}  // namespace
}  // namespace eplb::cuda
