#include "cuda/square_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/kernels/square_rows_body.h"
#include "tests/cuda/gradient_case.h"

namespace eplb::cuda {
namespace {

class SquareRowsTest : public ::testing::TestWithParam<ElementType> {};

INSTANTIATE_TEST_SUITE_P(Types, SquareRowsTest, ::testing::ValuesIn(testing::kElementTypes));

TEST_P(SquareRowsTest, ALongRowIsSummedInParts) {
  const testing::LongRows rows = testing::MakeLongRows(GetParam(), 412);
  std::vector<double> sums(rows.rows.size());
  ASSERT_TRUE(SquareRowsOnHost(rows.At(rows.bytes.data()), GetParam(), sums).ok());
  for (size_t i = 0; i < sums.size(); ++i) {
    const std::byte* const row = rows.bytes.data() + rows.rows[i].source;
    EXPECT_EQ(sums[i], testing::PlainSquares(GetParam(), row, rows.rows[i].num_bytes)) << i;
  }
}

TEST_P(SquareRowsTest, WhatIsNoNumberHasTheSameBitsWhereverItStands) {
  std::vector<std::byte> row(64);
  std::vector<double> sums(1);
  for (const uint64_t bits : testing::HardBits(GetParam())) {
    std::memcpy(row.data() + 32, &bits, static_cast<size_t>(ElementBytes(GetParam())));
    const RowCopy copy{row.data(), nullptr, std::ssize(row)};
    ASSERT_TRUE(SquareRowsOnHost({&copy, 1}, GetParam(), sums).ok());
    const double value = testing::Decode(GetParam(), row.data() + 32);
    const uint64_t expected =
        std::isnan(value) ? 0x7fffffffffffffff : BitsAs<uint64_t>(value * value);
    EXPECT_EQ(BitsAs<uint64_t>(sums[0]), expected) << value;
  }
}

TEST(SquarePartsTest, WholeRoundsAtMost64OfARow) {
  constexpr int64_t kPart = int64_t{64} * 1024;
  EXPECT_EQ(NumSquareParts(0), 0);
  EXPECT_EQ(NumSquareParts(1), 1);
  EXPECT_EQ(NumSquareParts(kPart), 1);
  EXPECT_EQ(NumSquareParts(kPart + 1), 2);
  EXPECT_EQ(NumSquareParts(kPart * 64), 64);
  EXPECT_EQ(NumSquareParts(kPart * 64 + 1), 43) << "of 96 KiB";
  EXPECT_LE(NumSquareParts(int64_t{1} << 40), 64);
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

TEST(ChooseSquareBlocksTest, ABlockAPartUpToFourAMultiprocessor) {
  EXPECT_EQ(ChooseSquareBlocks(0, 132), 0);
  EXPECT_EQ(ChooseSquareBlocks(1, 132), 64);
  EXPECT_EQ(ChooseSquareBlocks(1000, 132), 528);
}

}  // namespace
}  // namespace eplb::cuda
