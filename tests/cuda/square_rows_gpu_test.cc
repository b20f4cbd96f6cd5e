#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <ios>
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

class LaunchSquareRowsTest : public testing::StreamTest<::testing::TestWithParam<ElementType>> {
 protected:
  std::vector<double> SquaresOf(const std::vector<RowCopy>& rows) {
    std::vector<TiledRow> tiled(rows.size());
    TileRows(rows, tiled);
    const auto num_rows = static_cast<int32_t>(rows.size());
    const OnDevice<TiledRow> table(tiled);
    const OnDevice<double> parts(
        std::vector<double>(static_cast<size_t>(NumSquareScratch(num_rows)), -1));
    const OnDevice<double> sums(std::vector<double>(rows.size(), -1));
    const absl::Status launched = LaunchSquareRows({.rows = table.data(),
                                                    .num_rows = num_rows,
                                                    .parts = parts.data(),
                                                    .sums = sums.data(),
                                                    .type = GetParam()},
                                                   stream_.get());
    EXPECT_TRUE(launched.ok()) << launched;
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    return sums.Read();
  }
};

INSTANTIATE_TEST_SUITE_P(Types, LaunchSquareRowsTest, ::testing::ValuesIn(testing::kElementTypes));

TEST_P(LaunchSquareRowsTest, SumsWithTheBitsOfTheHost) {
  constexpr uint64_t kSeed = 430;
  const testing::GradientCase gradients = testing::MakeGradientCase(GetParam(), kSeed);
  const OnDevice<std::byte> sources(gradients.sources);
  EXPECT_EQ(SquaresOf(gradients.At(sources.data(), nullptr)), gradients.squares)
      << "seed " << kSeed;
}

TEST_P(LaunchSquareRowsTest, SumsLongRowsInPartsWithTheBitsOfTheHost) {
  const testing::LongRows rows = testing::MakeLongRows(GetParam(), 431);
  std::vector<double> expected(rows.rows.size());
  ASSERT_TRUE(SquareRowsOnHost(rows.At(rows.bytes.data()), GetParam(), expected).ok());
  const OnDevice<std::byte> bytes(rows.bytes);
  EXPECT_EQ(SquaresOf(rows.At(bytes.data())), expected);
}

TEST_P(LaunchSquareRowsTest, WhatIsNoNumberHasTheBitsOfTheHost) {
  for (const uint64_t bits : testing::HardBits(GetParam())) {
    std::vector<std::byte> values(64);
    std::memcpy(values.data() + 32, &bits, static_cast<size_t>(ElementBytes(GetParam())));
    std::vector<double> expected(1);
    const RowCopy on_host{values.data(), nullptr, std::ssize(values)};
    ASSERT_TRUE(SquareRowsOnHost({&on_host, 1}, GetParam(), expected).ok());
    const OnDevice<std::byte> bytes(values);
    const std::vector<double> sums = SquaresOf({{bytes.data(), nullptr, std::ssize(values)}});
    ASSERT_EQ(BitsAs<uint64_t>(sums[0]), BitsAs<uint64_t>(expected[0])) << std::hex << bits;
  }
}

TEST_P(LaunchSquareRowsTest, NoRowsLaunchNothing) {
  EXPECT_TRUE(LaunchSquareRows({.type = GetParam()}, stream_.get()).ok());
}

}  // namespace
}  // namespace eplb::cuda
