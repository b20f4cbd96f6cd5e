#include "cuda/add_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/cuda/gradient_case.h"

namespace eplb::cuda {
namespace {

using ::testing::HasSubstr;

class AddRowsTest : public ::testing::TestWithParam<ElementType> {};

INSTANTIATE_TEST_SUITE_P(Types, AddRowsTest, ::testing::ValuesIn(testing::kElementTypes));

TEST_P(AddRowsTest, OnHostRoundsOnceWhateverTheValuesAre) {
  const testing::Addends addends = testing::MakeAddends(GetParam());
  std::vector<std::byte> sums = addends.left;
  const RowCopy row{addends.right.data(), sums.data(), std::ssize(sums)};
  ASSERT_TRUE(AddRowsOnHost({&row, 1}, GetParam()).ok());
  std::vector<std::byte> expected(sums.size());
  const auto size = static_cast<size_t>(ElementBytes(GetParam()));
  for (size_t at = 0; at < sums.size(); at += size) {
    const double left = testing::Decode(GetParam(), addends.left.data() + at);
    const double right = testing::Decode(GetParam(), addends.right.data() + at);
    testing::Encode(GetParam(), left + right, expected.data() + at);
    ASSERT_EQ(std::memcmp(sums.data() + at, expected.data() + at, size), 0)
        << left << " + " << right;
  }
}

TEST(AddRowsOnHostTest, ARefusedBatchAddsNothing) {
  const float one[] = {1, 1};
  float sum[] = {1, 1};
  const auto* source = reinterpret_cast<const std::byte*>(one);
  auto* destination = reinterpret_cast<std::byte*>(sum);
  const auto refusal = [&](const RowCopy& row) {
    const std::vector<RowCopy> rows{{source, destination, 8}, row};
    const absl::Status status = AddRowsOnHost(rows, ElementType::kFloat32);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal({source, destination, 6}),
            "row 1 of the addition has 6 bytes, expected a multiple of the element's 4");
  EXPECT_EQ(refusal({source, nullptr, 4}), "row 1 of the addition has 4 bytes and no destination");
  EXPECT_THAT(refusal({nullptr, destination, 4}), HasSubstr("row 1 of the copy has 4 bytes"));
  EXPECT_EQ(sum[0], 1);
  EXPECT_TRUE(AddRowsOnHost({}, ElementType::kFloat16).ok());
  EXPECT_TRUE(AddRowsOnHost(std::vector<RowCopy>(1), ElementType::kFloat16).ok());
}

}  // namespace
}  // namespace eplb::cuda
