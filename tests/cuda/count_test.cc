#include "cuda/count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/cuda/count_case.h"

namespace eplb::cuda {
namespace {

using ::testing::HasSubstr;

template <class ExpertId>
class CountOnHostTest : public ::testing::Test {};
using ExpertIds = ::testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(CountOnHostTest, ExpertIds);

TYPED_TEST(CountOnHostTest, EqualsThePlainReference) {
  constexpr uint64_t kSeed = 100;
  for (const testing::CountShape& shape : testing::CountShapes()) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " tokens ", shape.num_tokens, " top_k ", shape.top_k,
                              " masked ", shape.masked));
    const auto c = testing::MakeCountCase<TypeParam>(shape, kSeed);
    CountArgs args = testing::ArgsOf(c);
    std::vector<int64_t> counts(c.counts.size());
    int64_t out_of_range = 0;
    args.counts = counts.data();
    args.out_of_range = &out_of_range;
    ASSERT_TRUE(CountOnHost(args).ok());
    ASSERT_EQ(counts, c.counts);
    ASSERT_EQ(out_of_range, c.out_of_range);
  }
}

TEST(CheckCountArgsTest, RefusalNamesTheNumber) {
  const std::vector<int32_t> ids{0};
  std::vector<int64_t> counts{0};
  const CountArgs good{.expert_ids = ids.data(),
                       .num_tokens = 1,
                       .top_k = 1,
                       .num_experts = 1,
                       .counts = counts.data(),
                       .out_of_range = counts.data()};
  EXPECT_TRUE(CheckCountArgs(good).ok());
  CountArgs bad = good;
  bad.num_tokens = -1;
  EXPECT_THAT(CheckCountArgs(bad).message(), HasSubstr("num_tokens is -1"));
  bad = good;
  bad.top_k = 0;
  EXPECT_THAT(CheckCountArgs(bad).message(), HasSubstr("top_k is 0"));
  bad = good;
  bad.num_experts = 0;
  EXPECT_THAT(CheckCountArgs(bad).message(), HasSubstr("num_experts is 0"));
  bad = good;
  bad.num_tokens = INT64_MAX;
  bad.top_k = INT32_MAX;
  EXPECT_THAT(CheckCountArgs(bad).message(), HasSubstr("is above 2147483648"));
  bad.top_k = 1;
  bad.num_tokens = int64_t{1} << 31;
  EXPECT_TRUE(CheckCountArgs(bad).ok()) << "a 32-bit histogram holds so many on any grid";
  bad = good;
  bad.counts = nullptr;
  EXPECT_THAT(CheckCountArgs(bad).message(), HasSubstr("one of them is null"));
  bad.num_tokens = 0;
  EXPECT_TRUE(CheckCountArgs(bad).ok()) << "no work needs no pointer";
}

TEST(CountOnHostTest, EachChunkHasItsCounts) {
  constexpr uint64_t kSeed = 101;
  const auto c = testing::MakeCountCase<int32_t>({40'001, 8, 16, true}, kSeed);
  CountArgs args = testing::ArgsOf(c);
  std::vector<int64_t> counts(c.counts.size());
  int64_t out_of_range = 0;
  args.counts = counts.data();
  args.out_of_range = &out_of_range;
  const auto num_cells = static_cast<size_t>(ChunkCountsBytes(args)) / sizeof(int32_t);
  std::vector<int32_t> chunks(num_cells, -5);
  args.chunk_counts = chunks.data();
  ASSERT_TRUE(CountOnHost(args).ok());
  std::vector<int32_t> expected(num_cells);
  const size_t chunk_choices = ChunkChoices(NumChoices(args));
  EXPECT_EQ(chunk_choices, 10 * kChunkUnit) << "320,008 choices in at most 132 chunks";
  for (size_t i = 0; i < c.ids.size(); ++i) {
    if (c.is_padding[i / 8] != 0 || c.ids[i] < 0 || c.ids[i] >= 16) continue;
    ++expected[i / chunk_choices * 16 + static_cast<size_t>(c.ids[i])];
  }
  EXPECT_EQ(chunks, expected) << "seed " << kSeed;
  EXPECT_EQ(counts, c.counts);
  args.num_experts = 20'000;
  EXPECT_THAT(CheckCountArgs(args).message(), HasSubstr("chunks over 20000 experts"));
}

TEST(GridOfChoicesTest, AChunkABlockAndAtMost132) {
  struct Grid {
    int64_t num_tokens;
    int32_t blocks, threads;
    uint32_t chunk_choices;
  };
  for (const Grid& grid : {Grid{0, 0, 256, 1024}, Grid{1, 1, 256, 1024}, Grid{128, 1, 256, 1024},
                           Grid{129, 2, 256, 1024}, Grid{4096, 32, 256, 1024},
                           Grid{16'896, 132, 256, 1024}, Grid{16'897, 106, 320, 1280},
                           Grid{131'072, 128, 1024, 8192}, Grid{1 << 28, 132, 1024, 16'269'056}}) {
    const ChoiceGrid chosen =
        GridOfChoices({.num_tokens = grid.num_tokens, .top_k = 8, .num_experts = 256});
    EXPECT_EQ(chosen.blocks, grid.blocks) << grid.num_tokens;
    EXPECT_EQ(chosen.threads, grid.threads) << grid.num_tokens;
    EXPECT_EQ(chosen.chunk_choices, grid.chunk_choices) << grid.num_tokens;
  }
}

TEST(HistogramBytesTest, AHistogramStaysInSharedMemoryWhileItFits) {
  EXPECT_EQ(HistogramBytes(256), 258 * 4);
  EXPECT_EQ(HistogramBytes(12286), 48 * 1024);
  EXPECT_EQ(HistogramBytes(12287), 0);
}

TEST(TokenDividerTest, DividesAsTheProcessorDoes) {
  for (const int32_t top_k :
       {1, 2, 3, 5, 6, 7, 8, 9, 10, 12, 100, 641, 65537, 1 << 30, INT32_MAX}) {
    const TokenDivider divider = MakeTokenDivider(top_k);
    const auto divisor = static_cast<uint32_t>(top_k);
    for (uint32_t index = 0; index < uint32_t{1} << 31; index += 1 + index / 1000) {
      const uint32_t multiple = index - index % divisor;  // a wrong quotient shows here
      for (const uint32_t dividend : {index, multiple, multiple - (multiple > 0 ? 1 : 0)}) {
        ASSERT_EQ(TokenOfChoice(divider, dividend), dividend / divisor) << dividend << " " << top_k;
      }
    }
    EXPECT_EQ(TokenOfChoice(divider, INT32_MAX), INT32_MAX / divisor) << top_k;
  }
}

}  // namespace
}  // namespace eplb::cuda
