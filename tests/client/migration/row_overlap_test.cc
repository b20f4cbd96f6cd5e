#include "client/migration/row_overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

class RowOverlapTest : public ::testing::Test {
 protected:
  ExpertTensor At(const std::string& name, int64_t begin, int64_t row_bytes, int64_t row_stride) {
    return {.name = name,
            .layer = LayerId{0},
            .role = TensorRole::kWeight,
            .base = memory_ + begin,
            .num_rows = 3,
            .row_bytes = row_bytes,
            .row_stride = row_stride};
  }

  std::byte memory_[256] = {};
};

TEST_F(RowOverlapTest, RowsOfAFusedBufferLieBetweenEachOther) {
  const std::vector<ExpertTensor> tensors = {At("master", 0, 8, 24), At("first", 8, 8, 24),
                                             At("second", 16, 8, 24), At("after", 72, 8, 8)};
  EXPECT_TRUE(CheckRowsApart(tensors).ok()) << CheckRowsApart(tensors);
}

TEST_F(RowOverlapTest, SharedBytesAreRefusedNamingBothTensorsAndSlots) {
  const std::vector<ExpertTensor> tensors = {At("w", 0, 16, 32), At("bias", 60, 8, 32)};
  EXPECT_EQ(CheckRowsApart(tensors),
            absl::InvalidArgumentError(
                "tensor \"w\": local slot 2 shares 4 bytes with local slot 0 of \"bias\"; each "
                "byte of an expert is registered once (docs/registering-tensors.md)"));
}

TEST_F(RowOverlapTest, SameMemoryUnderTwoNamesIsRefused) {
  const std::vector<ExpertTensor> tensors = {At("w", 0, 16, 16), At("tied", 0, 16, 16)};
  EXPECT_EQ(CheckRowsApart(tensors).message(),
            "tensor \"w\": local slot 0 shares 16 bytes with local slot 0 of \"tied\"; each byte "
            "of an expert is registered once (docs/registering-tensors.md)");
}

TEST_F(RowOverlapTest, AgreesWithCountingEachByte) {
  const uint32_t seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int32_t num_refused = 0;
  for (int32_t i = 0; i < 2000; ++i) {
    std::vector<ExpertTensor> tensors;
    std::multiset<const std::byte*> bytes;
    for (int32_t t = 0; t < 3; ++t) {
      const auto row_bytes = static_cast<int64_t>(1 + random() % 6);
      const auto row_stride = row_bytes + static_cast<int64_t>(random() % 40);
      tensors.push_back(
          At(absl::StrCat("t", t), static_cast<int64_t>(random() % 100), row_bytes, row_stride));
      for (int32_t row = 0; row < 3; ++row) {
        for (int64_t b = 0; b < row_bytes; ++b) {
          bytes.insert(static_cast<std::byte*>(tensors.back().base) + row * row_stride + b);
        }
      }
    }
    const bool apart =
        std::set<const std::byte*>(bytes.begin(), bytes.end()).size() == bytes.size();
    EXPECT_EQ(CheckRowsApart(tensors).ok(), apart) << "case " << i;
    num_refused += apart ? 0 : 1;
  }
  EXPECT_GT(num_refused, 200);
  EXPECT_LT(num_refused, 1800);
}

}  // namespace
}  // namespace eplb
