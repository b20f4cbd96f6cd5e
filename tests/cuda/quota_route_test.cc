#include "cuda/quota_route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

#include "cuda/count.h"
#include "tests/cuda/quota_route_case.h"

namespace eplb::cuda {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class ExpertId>
class QuotaRouteTest : public ::testing::Test {};
using QuotaRouteIds = ::testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(QuotaRouteTest, QuotaRouteIds);

TYPED_TEST(QuotaRouteTest, EqualsThePlainReference) {
  constexpr uint64_t kSeed = 430;
  for (const testing::CountShape& shape : testing::CountShapes()) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " tokens ", shape.num_tokens, " top_k ", shape.top_k,
                              " masked ", shape.masked));
    auto c = testing::MakeQuotaRouteCase<TypeParam>(shape, kSeed);
    QuotaRouteArgs args = c.Args();
    std::vector<TypeParam> slots(c.slots.size());
    int64_t beyond = 0;
    args.slots = slots.data();
    args.beyond = &beyond;
    ASSERT_TRUE(QuotaRouteOnHost(args).ok());
    EXPECT_EQ(slots, c.slots);
    EXPECT_EQ(beyond, c.beyond);
    args.slots = c.choices.ids.data();
    ASSERT_TRUE(QuotaRouteOnHost(args).ok());
    EXPECT_EQ(c.choices.ids, c.slots) << "in place";
  }
}

TEST(QuotaRouteOnHostTest, ChoicesFillSlotsInTheirOrder) {
  const std::vector<int32_t> ids = {0, 1, 0, 0, 1, 0, 0, 2};
  const std::vector<int32_t> first_slot = {0, 2, 3};
  const std::vector<int32_t> replica_slot = {2, 0, 1};  // expert 0: slot 2 before slot 0
  std::vector<int64_t> own = {2, 2, 2};
  std::vector<int32_t> slots(8);
  int64_t beyond = 0;
  const QuotaRouteArgs args{
      .choices = {.expert_ids = ids.data(), .num_tokens = 8, .top_k = 1, .num_experts = 2},
      .first_slot = first_slot.data(),
      .replica_slot = replica_slot.data(),
      .own = own.data(),
      .num_slots = 3,
      .slots = slots.data(),
      .beyond = &beyond};
  ASSERT_TRUE(QuotaRouteOnHost(args).ok());
  EXPECT_THAT(slots, ElementsAre(2, 1, 2, 0, 1, 0, AnyOf(0, 2), kNoSlot));
  EXPECT_EQ(beyond, 1) << "expert 0 has five choices and quotas of four; expert 2 is none";
  own.assign(3, -1);
  ASSERT_TRUE(QuotaRouteOnHost(args).ok());
  EXPECT_THAT(slots, ElementsAre(AnyOf(0, 2), 1, AnyOf(0, 2), AnyOf(0, 2), 1, AnyOf(0, 2),
                                 AnyOf(0, 2), kNoSlot))
      << "of a split that was refused";
  EXPECT_EQ(beyond, 1 + 7);
  QuotaRouteArgs bad = args;
  bad.own = nullptr;
  EXPECT_THAT(CheckQuotaRouteArgs(bad).message(), HasSubstr("one of them is null"));
  bad.choices.num_tokens = 0;
  EXPECT_TRUE(CheckQuotaRouteArgs(bad).ok()) << "no work needs no pointer";
  bad.choices.top_k = 0;
  EXPECT_THAT(CheckQuotaRouteArgs(bad).message(), HasSubstr("top_k is 0"));
}

TEST(ChooseQuotaRouteGridTest, AsManyWarpsAsSharedMemoryHolds) {
  EXPECT_EQ(ChooseQuotaRouteGrid(256, 288).warps, 32);
  EXPECT_EQ(ChooseQuotaRouteGrid(512, 640).warps, 20);
  EXPECT_EQ(ChooseQuotaRouteGrid(1024, 2048).warps, 6);
  EXPECT_EQ(ChooseQuotaRouteGrid(3000, 3000).warps, 0);
  for (const int32_t num_experts : {1, 255, 512, 1024}) {
    EXPECT_LE(ChooseQuotaRouteGrid(num_experts, 2 * num_experts).shared_bytes, kMaxSharedBytes);
  }
}

}  // namespace
}  // namespace eplb::cuda
