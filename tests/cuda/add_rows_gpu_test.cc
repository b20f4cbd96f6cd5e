#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/add_rows.h"
#include "cuda/copy.h"
#include "cuda/runtime.h"
#include "tests/cuda/gradient_case.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"

namespace eplb::cuda {
namespace {

using testing::OnDevice;

class LaunchAddRowsTest : public testing::StreamTest<::testing::TestWithParam<ElementType>> {};

INSTANTIATE_TEST_SUITE_P(Types, LaunchAddRowsTest, ::testing::ValuesIn(testing::kElementTypes));

TEST_P(LaunchAddRowsTest, AddsAsFloat64SaysOnAnyGridAndTouchesNothingElse) {
  constexpr uint64_t kSeed = 420;
  const testing::GradientCase gradients = testing::MakeGradientCase(GetParam(), kSeed);
  for (const int32_t max_blocks : {0, 1, 3, 64}) {
    const OnDevice<std::byte> sources(gradients.sources);
    const OnDevice<std::byte> destinations(gradients.destinations);
    std::vector<TiledRow> tiled(gradients.rows.size());
    const int64_t num_tiles = TileRows(gradients.At(sources.data(), destinations.data()), tiled);
    const OnDevice<TiledRow> table(tiled);
    const absl::Status launched = LaunchAddRows({.rows = table.data(),
                                                 .num_rows = static_cast<int32_t>(tiled.size()),
                                                 .num_tiles = num_tiles,
                                                 .type = GetParam()},
                                                max_blocks, stream_.get());
    ASSERT_TRUE(launched.ok()) << launched;
    ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    EXPECT_TRUE(testing::SameBytes(destinations.Read(), gradients.sums)) << "seed " << kSeed;
  }
}

TEST_P(LaunchAddRowsTest, HasTheBitsOfTheHostWhateverTheValuesAre) {
  const testing::Addends addends = testing::MakeAddends(GetParam());
  std::vector<std::byte> expected = addends.left;
  const RowCopy on_host{addends.right.data(), expected.data(), std::ssize(expected)};
  ASSERT_TRUE(AddRowsOnHost({&on_host, 1}, GetParam()).ok());
  const OnDevice<std::byte> source(addends.right);
  const OnDevice<std::byte> sum(addends.left);
  const RowCopy row{source.data(), sum.data(), std::ssize(expected)};
  std::vector<TiledRow> tiled(1);
  const int64_t num_tiles = TileRows({&row, 1}, tiled);
  const OnDevice<TiledRow> table(tiled);
  const AddArgs args{
      .rows = table.data(), .num_rows = 1, .num_tiles = num_tiles, .type = GetParam()};
  ASSERT_TRUE(LaunchAddRows(args, 0, stream_.get()).ok());
  ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  const std::vector<std::byte> sums = sum.Read();
  const auto size = static_cast<size_t>(ElementBytes(GetParam()));
  for (size_t at = 0; at < sums.size(); at += size) {
    ASSERT_EQ(std::memcmp(sums.data() + at, expected.data() + at, size), 0)
        << testing::Decode(GetParam(), addends.left.data() + at) << " + "
        << testing::Decode(GetParam(), addends.right.data() + at);
  }
}

TEST_P(LaunchAddRowsTest, NoRowsLaunchNothing) {
  EXPECT_TRUE(LaunchAddRows({.type = GetParam()}, 0, stream_.get()).ok());
}

}  // namespace
}  // namespace eplb::cuda
