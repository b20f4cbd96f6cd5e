#include "cuda/count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/cuda/count_case.h"

namespace eplb::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
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

TYPED_TEST(CountOnHostTest, IdsOutOfRangeWriteNothingBesideTheCounters) {
  const std::vector<TypeParam> ids{-1, 3, 1000000, std::numeric_limits<TypeParam>::min(),
                                   std::numeric_limits<TypeParam>::max()};
  std::vector<int64_t> guarded(3 + 2 * 16, 77);  // 16 cells of red zone on both sides
  int64_t out_of_range = 0;
  const CountArgs args{
      .expert_ids = ids.data(),
      .id_type = sizeof(TypeParam) == 4 ? ExpertIdType::kInt32 : ExpertIdType::kInt64,
      .num_tokens = 5,
      .top_k = 1,
      .num_experts = 3,
      .counts = guarded.data() + 16,
      .out_of_range = &out_of_range};
  ASSERT_TRUE(CountOnHost(args).ok());
  EXPECT_EQ(out_of_range, 5);
  EXPECT_THAT(guarded, Each(77));
}

TEST(CountOnHostTest, CountsAreAddedToWhatIsThere) {
  const std::vector<int32_t> ids{0, 1, 1, -1};
  std::vector<int64_t> counts{10, 20};
  int64_t out_of_range = 5;
  const CountArgs args{.expert_ids = ids.data(),
                       .num_tokens = 2,
                       .top_k = 2,
                       .num_experts = 2,
                       .counts = counts.data(),
                       .out_of_range = &out_of_range};
  ASSERT_TRUE(CountOnHost(args).ok());
  EXPECT_THAT(counts, ElementsAre(11, 22));
  EXPECT_EQ(out_of_range, 6);
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
  EXPECT_THAT(CheckCountArgs(bad).message(), HasSubstr("count of -1 tokens"));
  bad = good;
  bad.top_k = 0;
  EXPECT_THAT(CheckCountArgs(bad).message(), HasSubstr("0 choices"));
  bad = good;
  bad.num_experts = 0;
  EXPECT_THAT(CheckCountArgs(bad).message(), HasSubstr("0 experts"));
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

CountArgs Shape(int64_t num_tokens, int32_t top_k, int32_t num_experts, int64_t* counts) {
  return {.num_tokens = num_tokens, .top_k = top_k, .num_experts = num_experts, .counts = counts};
}

TEST(ChooseCountGridTest, NothingToCountLaunchesNothing) {
  EXPECT_EQ(ChooseCountGrid(Shape(0, 8, 256, nullptr), 132).blocks, 0);
}

TEST(ChooseCountGridTest, AQuadAThreadUpToTwoBlocksAMultiprocessor) {
  const auto grid = [](int64_t num_tokens) {
    return ChooseCountGrid(Shape(num_tokens, 8, 256, nullptr), 132);
  };
  EXPECT_EQ(grid(1).blocks, 1);
  EXPECT_EQ(grid(256).blocks, 1);
  EXPECT_EQ(grid(257).blocks, 2);
  EXPECT_EQ(grid(4096).blocks, 16);
  EXPECT_EQ(grid(int64_t{1} << 28).blocks, 264);
  EXPECT_EQ(grid(1).threads, 512);
}

TEST(ChooseCountGridTest, HistogramStaysInSharedMemoryWhileItFits) {
  int64_t counts = 0;
  EXPECT_EQ(ChooseCountGrid(Shape(1, 1, 256, &counts), 132).shared_bytes, 257 * 4);
  EXPECT_EQ(ChooseCountGrid(Shape(1, 1, 12287, &counts), 132).shared_bytes, 48 * 1024);
  EXPECT_EQ(ChooseCountGrid(Shape(1, 1, 12288, &counts), 132).shared_bytes, 0);
  EXPECT_EQ(ChooseCountGrid(Shape(1, 1, 256, nullptr), 132).shared_bytes, 0) << "no counters";
}

}  // namespace
}  // namespace eplb::cuda
