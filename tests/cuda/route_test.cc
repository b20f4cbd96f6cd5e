#include "cuda/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/cuda/route_case.h"

namespace eplb::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Expert 0 in slots 0, 3 and 5; 1 in 1 and 4; 2 in 2.
constexpr std::array<int32_t, 6> kSixSlots{0, 1, 2, 0, 1, 0};

// Slots that `num_tokens` tokens get which all choose `expert`.
std::vector<int32_t> RouteAllTo(int32_t expert, int64_t num_tokens, const RouteTable& table,
                                int64_t first_token = 0) {
  const std::vector<int32_t> ids(static_cast<size_t>(num_tokens), expert);
  std::vector<int32_t> slots(ids.size());
  const absl::Status routed = RouteOnHost({.choices = {.expert_ids = ids.data(),
                                                       .num_tokens = num_tokens,
                                                       .top_k = 1,
                                                       .num_experts = 3},
                                           .table = table,
                                           .slots = slots.data(),
                                           .first_token = first_token});
  EXPECT_TRUE(routed.ok()) << routed;
  return slots;
}

template <class ExpertId>
class RouteOnHostTest : public ::testing::Test {};
using RouteIds = ::testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(RouteOnHostTest, RouteIds);

TYPED_TEST(RouteOnHostTest, EqualsThePlainReferenceAndTheFusedPassCountsAsCountDoes) {
  constexpr uint64_t kSeed = 410;
  for (const testing::CountShape& shape : testing::CountShapes()) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " tokens ", shape.num_tokens, " top_k ", shape.top_k,
                              " masked ", shape.masked));
    const auto c = testing::MakeRouteCase<TypeParam>(shape, kSeed);
    RouteArgs args = testing::ArgsOf(c);
    std::vector<TypeParam> slots(c.slots.size());
    args.slots = slots.data();
    ASSERT_TRUE(RouteOnHost(args).ok());
    ASSERT_EQ(slots, c.slots);

    std::vector<TypeParam> fused_slots(c.slots.size());
    std::vector<int64_t> fused_counts(c.choices.counts.size());
    int64_t fused_out_of_range = 0;
    args.slots = fused_slots.data();
    args.choices.counts = fused_counts.data();
    args.choices.out_of_range = &fused_out_of_range;
    ASSERT_TRUE(RouteOnHost(args).ok());
    EXPECT_EQ(fused_slots, slots);
    EXPECT_EQ(fused_counts, c.choices.counts);
    EXPECT_EQ(fused_out_of_range, c.choices.out_of_range);
  }
}

TYPED_TEST(RouteOnHostTest, SlotsMayReplaceTheIds) {
  auto c = testing::MakeRouteCase<TypeParam>({1003, 3, 64, true}, 411);
  RouteArgs args = testing::ArgsOf(c);
  args.slots = c.choices.ids.data();
  ASSERT_TRUE(RouteOnHost(args).ok());
  EXPECT_EQ(c.choices.ids, c.slots);
}

TYPED_TEST(RouteOnHostTest, PartsRouteAsTheWhole) {
  const auto c = testing::MakeRouteCase<TypeParam>({1000, 8, 64, false}, 412);
  std::vector<TypeParam> slots(c.slots.size());
  for (const int64_t begin : {700, 0, 300}) {
    RouteArgs args = testing::ArgsOf(c);
    args.choices.expert_ids = c.choices.ids.data() + begin * 8;
    args.choices.num_tokens = begin == 0 ? 300 : begin == 300 ? 400 : 300;
    args.slots = slots.data() + begin * 8;
    args.first_token += begin;
    ASSERT_TRUE(RouteOnHost(args).ok());
  }
  EXPECT_EQ(slots, c.slots);
}

TEST(RouteTest, LocalReplicasTakeAllTokens) {
  const auto table = MakeRouteTable({.physical_to_logical = kSixSlots,
                                     .num_experts = 3,
                                     .first_local_slot = 4,
                                     .num_local_slots = 2});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(RouteAllTo(0, 100, table->View()), Each(5));
  EXPECT_THAT(RouteAllTo(1, 100, table->View()), Each(4));
  EXPECT_THAT(RouteAllTo(2, 100, table->View()), Each(2)) << "not on this GPU, so elsewhere";
}

TEST(RouteTest, SharesAreMetWithinTheErrorOfSampling) {
  constexpr int64_t kTokens = 400'000;
  constexpr int64_t kFirstToken = 987'654'321;
  const std::vector<double> shares{0.5, 1, 1, 2, 0, 7.5};
  const auto table =
      MakeRouteTable({.physical_to_logical = kSixSlots, .num_experts = 3, .replica_share = shares});
  ASSERT_TRUE(table.ok()) << table.status();
  std::vector<int64_t> tokens(6);
  for (const int32_t slot : RouteAllTo(0, kTokens, table->View(), kFirstToken)) {
    ++tokens[static_cast<size_t>(slot)];
  }
  EXPECT_EQ(tokens[0] + tokens[3] + tokens[5], kTokens);
  for (const size_t slot : {0, 3, 5}) {
    const double share = shares[slot] / 10;
    const double sigma = std::sqrt(kTokens * share * (1 - share));
    EXPECT_NEAR(static_cast<double>(tokens[slot]), kTokens * share, 5 * sigma)
        << "slot " << slot << " first token " << kFirstToken;
  }
  EXPECT_THAT(RouteAllTo(1, 1000, table->View()), Each(1)) << "slot 4 has share 0";
}

TEST(RouteTest, ExpertsOfOneTokenAreDrawnApart) {
  // Two experts with replicas on the same two GPUs: a token's two choices agree half of the time.
  constexpr int64_t kTokens = 100'000;
  const std::vector<int32_t> four{0, 1, 0, 1};
  const auto table = MakeRouteTable({.physical_to_logical = four, .num_experts = 2});
  ASSERT_TRUE(table.ok()) << table.status();
  const std::vector<int32_t> first = RouteAllTo(0, kTokens, table->View());
  const std::vector<int32_t> second = RouteAllTo(1, kTokens, table->View());
  double agree = 0;
  for (size_t i = 0; i < first.size(); ++i) agree += first[i] / 2 == second[i] / 2 ? 1 : 0;
  EXPECT_NEAR(agree, kTokens / 2.0, 5 * std::sqrt(kTokens / 4.0));
}

TEST(RouteTest, EqualSharesChooseAsNoThresholdsDo) {
  const std::vector<double> shares(6, 0.1);
  for (const std::span<const double> share : {std::span<const double>(), std::span(shares)}) {
    const auto table = MakeRouteTable(
        {.physical_to_logical = kSixSlots, .num_experts = 3, .replica_share = share});
    ASSERT_TRUE(table.ok()) << table.status();
    RouteTable equal = table->View();
    equal.thresholds = nullptr;
    for (const int32_t expert : {0, 1, 2}) {
      EXPECT_EQ(RouteAllTo(expert, 50'000, table->View()), RouteAllTo(expert, 50'000, equal));
    }
  }
}

TEST(MakeRouteTableTest, ListsCandidatesByRisingSlot) {
  const std::vector<double> shares{1, 1, 1, 1, 3, 2};
  const auto table = MakeRouteTable({.physical_to_logical = kSixSlots,
                                     .num_experts = 3,
                                     .first_local_slot = 2,
                                     .num_local_slots = 1,
                                     .replica_share = shares});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->candidates, ElementsAre(0, 3, 5, 1, 4, 2));
  EXPECT_THAT(table->first_candidate, ElementsAre(0, 3, 5, 6));
  constexpr uint32_t kQuarter = 1U << 30;
  constexpr uint32_t kLast = UINT32_MAX;
  EXPECT_THAT(table->thresholds,
              ElementsAre(kQuarter, 2 * kQuarter, kLast, kQuarter, kLast, kLast));
}

TEST(MakeRouteTableTest, SharesOfZeroExcludeUnlessAllAreZero) {
  const std::vector<double> shares{0, 0, 1, 1, 0, 1};
  const auto table = MakeRouteTable({.physical_to_logical = kSixSlots,
                                     .num_experts = 3,
                                     .first_local_slot = 0,
                                     .num_local_slots = 1,
                                     .replica_share = shares});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->candidates, ElementsAre(3, 5, 1, 4, 2, -1)) << "local slot 0 has share 0";
  EXPECT_THAT(table->first_candidate, ElementsAre(0, 2, 4, 5));
  EXPECT_EQ(table->thresholds[2], 1U << 31) << "all shares of expert 1 are 0";
}

TEST(MakeRouteTableTest, TheLargestShareDoesNotOverflow) {
  const double largest = std::numeric_limits<double>::max();
  const std::vector<double> shares{largest, 1, 1, largest, 1, largest / 2};
  const auto table =
      MakeRouteTable({.physical_to_logical = kSixSlots, .num_experts = 3, .replica_share = shares});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->thresholds[0], 1717986919U) << "2^32 * 2 / 5, rounded up";
}

TEST(MakeRouteTableTest, RefusalNamesSlotOrExpert) {
  const RouteLayer good{.physical_to_logical = kSixSlots, .num_experts = 3};
  const auto message = [](const RouteLayer& layer) {
    return std::string(MakeRouteTable(layer).status().message());
  };
  EXPECT_EQ(message(good), "");
  RouteLayer bad = good;
  bad.num_experts = 0;
  EXPECT_THAT(message(bad), HasSubstr("0 experts"));
  bad.num_experts = 2;
  EXPECT_THAT(message(bad), HasSubstr("slot 2 holds expert 2, expected -1..1"));
  bad.num_experts = 4;
  EXPECT_THAT(message(bad), HasSubstr("expert 3 is in no slot"));
  bad = good;
  bad.first_local_slot = 5;
  bad.num_local_slots = 2;
  EXPECT_THAT(message(bad), HasSubstr("2 local slots from slot 5 on are not all among 6 slots"));
  bad = good;
  const std::vector<double> few{1, 2};
  bad.replica_share = few;
  EXPECT_THAT(message(bad), HasSubstr("6 slots and 2 shares"));
  const std::vector<double> negative{1, 1, 1, -1, 1, 1};
  bad.replica_share = negative;
  EXPECT_THAT(message(bad), HasSubstr("share of slot 3 is -1"));
}

TEST(CheckRouteArgsTest, RefusalNamesTheNumber) {
  const std::vector<int32_t> values{0};
  std::vector<int64_t> counts{0};
  std::vector<int32_t> slots{0};
  const RouteArgs good{
      .choices = {.expert_ids = values.data(), .num_tokens = 1, .top_k = 1, .num_experts = 1},
      .table = {.candidates = values.data(), .first_candidate = values.data(), .num_slots = 1},
      .slots = slots.data()};
  EXPECT_TRUE(CheckRouteArgs(good).ok());
  RouteArgs bad = good;
  bad.choices.top_k = 0;
  EXPECT_THAT(CheckRouteArgs(bad).message(), HasSubstr("choices.top_k is 0"));
  bad = good;
  bad.slots = nullptr;
  EXPECT_THAT(CheckRouteArgs(bad).message(), HasSubstr("one of them is null"));
  bad.choices.num_tokens = 0;
  EXPECT_TRUE(CheckRouteArgs(bad).ok()) << "no work needs no pointer";
  bad = good;
  bad.table.num_slots = 0;
  EXPECT_THAT(CheckRouteArgs(bad).message(), HasSubstr("a table of 0 slots"));
  bad = good;
  bad.choices.counts = counts.data();
  EXPECT_THAT(CheckRouteArgs(bad).message(), HasSubstr("expected both or neither"));
}

TEST(CandidateOfDrawTest, TheFirstThresholdAboveTheDraw) {
  const std::vector<uint32_t> thresholds{10, 20, 20, 4'000'000'000, UINT32_MAX};
  const auto of = [&](uint32_t draw) { return CandidateOfDraw(thresholds.data(), 5, draw); };
  EXPECT_EQ(of(0), 0);
  EXPECT_EQ(of(9), 0);
  EXPECT_EQ(of(10), 1);
  EXPECT_EQ(of(19), 1);
  EXPECT_EQ(of(20), 3) << "candidate 2 has no share";
  EXPECT_EQ(of(3'999'999'999), 3);
  EXPECT_EQ(of(4'000'000'000), 4);
  EXPECT_EQ(of(UINT32_MAX), 4);
  EXPECT_EQ(CandidateOfDraw(thresholds.data(), 1, UINT32_MAX), 0);
}

TEST(RouteDrawTest, ValueIsFixed) {
  // Draws that ranks on other builds, and the GPU, must make.
  EXPECT_EQ(RouteDraw(DrawKey(1), 0), 3294796023U);
  EXPECT_EQ(RouteDraw(DrawKey(123'456'789'012), 255), 2320662757U);
}

// Chi-square of cells that are equally likely, in standard deviations from its mean.
double Excess(const std::vector<int64_t>& cells) {
  double total = 0;
  for (const int64_t cell : cells) total += static_cast<double>(cell);
  const auto num_cells = static_cast<double>(cells.size());
  double chi_square = 0;
  for (const int64_t cell : cells) {
    const double distance = static_cast<double>(cell) - total / num_cells;
    chi_square += distance * distance / (total / num_cells);
  }
  return (chi_square - (num_cells - 1)) / std::sqrt(2 * (num_cells - 1));
}

// The upper bits of two draws, which may be of two experts or of two tokens, fill 256 cells evenly.
// So do those of one draw.
TEST(RouteDrawTest, DrawsAreUniformAndIndependentOverTokensAndExperts) {
  constexpr int64_t kTokens = 1 << 16;
  constexpr double kMostExcess = 6;  // in standard deviations; some 500 cases
  const auto excess = [](int64_t begin, int32_t expert, int64_t other_token, int32_t other_expert) {
    std::vector<int64_t> cells(256);
    for (int64_t token = begin; token < begin + kTokens; ++token) {
      const uint32_t draw = RouteDraw(DrawKey(token), expert);
      const uint32_t other = RouteDraw(DrawKey(token + other_token), other_expert);
      const bool is_same = other_token == 0 && other_expert == expert;
      ++cells[is_same ? draw >> 24 : (draw >> 28) * 16 + (other >> 28)];
    }
    return Excess(cells);
  };
  for (const int64_t begin :
       {int64_t{0}, int64_t{987'654'321}, (int64_t{1} << 32) - kTokens / 2, int64_t{7} << 40}) {
    for (const int32_t expert : {0, 1, 2, 100, 255, 1023}) {
      for (const int32_t other_expert : {0, 1, 2, 3, 100, 101, 255, 1023}) {
        EXPECT_LT(excess(begin, expert, 0, other_expert), kMostExcess)
            << "tokens from " << begin << " experts " << expert << " " << other_expert;
      }
      for (const int64_t distance :
           {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{8}, int64_t{64}, int64_t{256},
            int64_t{1024}, int64_t{4096}, int64_t{1} << 32, int64_t{1} << 40}) {
        EXPECT_LT(excess(begin, expert, distance, expert), kMostExcess)
            << "tokens from " << begin << " and " << distance << " later, expert " << expert;
      }
    }
  }
}

}  // namespace
}  // namespace eplb::cuda
