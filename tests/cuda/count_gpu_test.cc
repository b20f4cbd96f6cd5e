#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

#include "cuda/count.h"
#include "cuda/runtime.h"
#include "tests/cuda/count_case.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"

namespace eplb::cuda {
namespace {

using testing::OnDevice;

template <class ExpertId>
class LaunchCountTest : public ::testing::Test {
 protected:
  void SetUp() override { EPLB_REQUIRE_GPU_OR_SKIP(); }

  // Launches twice, so that the counters must be twice the reference, and looks at red zones.
  void CheckShape(const testing::CountShape& shape, uint64_t seed) {
    constexpr size_t kRedZone = 64;
    const auto c = testing::MakeCountCase<ExpertId>(shape, seed);
    const OnDevice<ExpertId> ids(c.ids);
    const OnDevice<uint8_t> is_padding(c.is_padding);
    const OnDevice<int64_t> counters(std::vector<int64_t>(c.counts.size() + 2 * kRedZone));
    const OnDevice<int64_t> out_of_range(std::vector<int64_t>(1));
    CountArgs args = testing::ArgsOf(c);
    args.expert_ids = ids.data();
    if (shape.masked) args.is_padding = is_padding.data();
    args.counts = counters.data() + kRedZone;
    args.out_of_range = out_of_range.data();
    const bool has_chunks = shape.num_experts < 10'000;
    const std::vector<int32_t> unwritten(
        has_chunks ? static_cast<size_t>(ChunkCountsBytes(args)) / sizeof(int32_t) : 0, -5);
    const OnDevice<int32_t> chunks(unwritten);
    if (has_chunks) args.chunk_counts = chunks.data();
    const auto stream = MakeStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    for (int i = 0; i < 2; ++i) {
      const absl::Status launched = LaunchCount(args, stream->get());
      ASSERT_TRUE(launched.ok()) << launched;
    }
    ASSERT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
    std::vector<int64_t> expected(counters.Read().size());
    for (size_t i = 0; i < c.counts.size(); ++i) expected[kRedZone + i] = 2 * c.counts[i];
    ASSERT_EQ(counters.Read(), expected);
    ASSERT_EQ(out_of_range.Read().front(), 2 * c.out_of_range);
    if (!has_chunks) return;
    CountArgs on_host = testing::ArgsOf(c);
    std::vector<int64_t> counts(c.counts.size());
    std::vector<int32_t> host_chunks = unwritten;
    int64_t host_out_of_range = 0;
    on_host.counts = counts.data();
    on_host.out_of_range = &host_out_of_range;
    on_host.chunk_counts = host_chunks.data();
    ASSERT_TRUE(CountOnHost(on_host).ok());
    ASSERT_EQ(chunks.Read(), host_chunks);
  }
};
using ExpertIds = ::testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(LaunchCountTest, ExpertIds);

TYPED_TEST(LaunchCountTest, EqualsThePlainReference) {
  ASSERT_TRUE(LoadCountKernels().ok());
  constexpr uint64_t kSeed = 110;
  std::vector<testing::CountShape> shapes = testing::CountShapes();
  shapes.push_back({testing::ManyTokens(), 8, 256, true});  // more than one stride of the grid
  shapes.push_back({10007, 4, 20000, false});  // a histogram too large for shared memory
  for (const testing::CountShape& shape : shapes) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " tokens ", shape.num_tokens, " top_k ", shape.top_k,
                              " experts ", shape.num_experts, " masked ", shape.masked));
    this->CheckShape(shape, kSeed);
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(LaunchCountTest, RefusesWhatTheHostRefuses) {
  EXPECT_EQ(LaunchCount({.num_tokens = -1, .top_k = 1, .num_experts = 1}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(LaunchCount({.num_tokens = 0, .top_k = 1, .num_experts = 1}, nullptr).ok());
}

}  // namespace
}  // namespace eplb::cuda
