#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/copy.h"
#include "cuda/runtime.h"
#include "cuda/square_rows.h"
#include "tests/cuda/gradient_case.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"

namespace eplb::cuda {
namespace {

using testing::OnDevice;

class LaunchSquareRowsTest : public ::testing::TestWithParam<ElementType> {
 protected:
  void SetUp() override {
    EPLB_REQUIRE_GPU_OR_SKIP();
    auto stream = MakeStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  Stream stream_;
};

INSTANTIATE_TEST_SUITE_P(Types, LaunchSquareRowsTest, ::testing::ValuesIn(testing::kElementTypes));

TEST_P(LaunchSquareRowsTest, SumsWithTheBitsOfTheHost) {
  constexpr uint64_t kSeed = 430;
  const testing::GradientCase gradients = testing::MakeGradientCase(GetParam(), kSeed);
  const OnDevice<std::byte> sources(gradients.sources);
  std::vector<TiledRow> tiled(gradients.rows.size());
  TileRows(gradients.At(sources.data(), nullptr), tiled);
  const OnDevice<TiledRow> table(tiled);
  const OnDevice<double> sums(std::vector<double>(tiled.size(), -1));
  const absl::Status launched = LaunchSquareRows({.rows = table.data(),
                                                  .num_rows = static_cast<int32_t>(tiled.size()),
                                                  .sums = sums.data(),
                                                  .type = GetParam()},
                                                 stream_.get());
  ASSERT_TRUE(launched.ok()) << launched;
  ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  EXPECT_EQ(sums.Read(), gradients.squares) << "seed " << kSeed;
}

TEST_P(LaunchSquareRowsTest, NoRowsLaunchNothingAndBadSizesAreRefused) {
  EXPECT_TRUE(LaunchSquareRows({.type = GetParam()}, stream_.get()).ok());
  EXPECT_EQ(LaunchSquareRows({.num_rows = -1, .type = GetParam()}, stream_.get()).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eplb::cuda
