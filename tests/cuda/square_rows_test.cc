#include "cuda/square_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/cuda/gradient_case.h"

namespace eplb::cuda {
namespace {

using ::testing::HasSubstr;

class SquareRowsTest : public ::testing::TestWithParam<ElementType> {};

INSTANTIATE_TEST_SUITE_P(Types, SquareRowsTest, ::testing::ValuesIn(testing::kElementTypes));

TEST_P(SquareRowsTest, SumsInTheOrderOfLanesAtAnyAlignment) {
  constexpr uint64_t kSeed = 410;
  testing::GradientCase gradients = testing::MakeGradientCase(GetParam(), kSeed);
  std::vector<double> sums(gradients.rows.size(), -1);
  const absl::Status summed = SquareRowsOnHost(
      gradients.At(gradients.sources.data(), gradients.destinations.data()), GetParam(), sums);
  ASSERT_TRUE(summed.ok()) << summed;
  EXPECT_EQ(sums, gradients.squares) << "seed " << kSeed;
}

TEST_P(SquareRowsTest, IsNearTheSumInAnyOtherOrder) {
  constexpr uint64_t kSeed = 411;
  testing::GradientCase gradients = testing::MakeGradientCase(GetParam(), kSeed);
  std::vector<double> sums(gradients.rows.size());
  const auto rows = gradients.At(gradients.sources.data(), gradients.destinations.data());
  ASSERT_TRUE(SquareRowsOnHost(rows, GetParam(), sums).ok());
  for (size_t i = 0; i < rows.size(); ++i) {
    double plain = 0;
    for (int64_t at = 0; at < rows[i].num_bytes; at += ElementBytes(GetParam())) {
      const double value = testing::Decode(GetParam(), rows[i].source + at);
      plain += value * value;
    }
    EXPECT_NEAR(sums[i], plain, 1e-12 * plain);
  }
}

TEST(SquareRowsOnHostTest, RefusalNamesTheNumber) {
  const std::byte bytes[8] = {};
  std::vector<double> sums(1);
  const std::vector<RowCopy> odd{{bytes, nullptr, 6}};
  EXPECT_EQ(SquareRowsOnHost(odd, ElementType::kFloat32, sums).message(),
            "row 0 of the squares has 6 bytes, expected a multiple of the element's 4");
  const std::vector<RowCopy> two(2);
  EXPECT_EQ(SquareRowsOnHost(two, ElementType::kFloat32, sums).message(),
            "squares of 2 rows have room for 1 sums");
  EXPECT_TRUE(SquareRowsOnHost({}, ElementType::kFloat32, {}).ok());
}

TEST(CheckSquareArgsTest, RefusalNamesTheNumber) {
  EXPECT_TRUE(CheckSquareArgs({}).ok());
  EXPECT_THAT(CheckSquareArgs({.num_rows = -1}).message(), HasSubstr("-1 rows"));
  EXPECT_THAT(CheckSquareArgs({.num_rows = 1}).message(), HasSubstr("one is null"));
}

TEST(ChooseSquareBlocksTest, ABlockARowUpToTwoAMultiprocessor) {
  EXPECT_EQ(ChooseSquareBlocks(0, 132), 0);
  EXPECT_EQ(ChooseSquareBlocks(7, 132), 7);
  EXPECT_EQ(ChooseSquareBlocks(1000, 132), 264);
}

}  // namespace
}  // namespace eplb::cuda
