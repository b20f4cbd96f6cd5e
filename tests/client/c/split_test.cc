// Exact splits of batches by the C ABI: with a client and without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/c/eplb.h"
#include "client/c/eplb_plan.h"
#include "tests/client/c/c_rank.h"

namespace eplb {
namespace {

using testing::CJob;
using testing::CRank;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kSplitExperts = testing::kSmallExperts;
constexpr int32_t kSplitSlots = 6;  // two GPUs: experts 0 1 2 | 3 0 1
constexpr int32_t kSplitGpus = 2;

// One call's memory.
struct SplitCall {
  SplitCall() {
    result.struct_size = sizeof(result);
    result.quotas = quotas.data();
    result.own = own.data();
    result.tight_gpus = tight.data();
    result.num_slots = kSplitSlots;
    batch.struct_size = sizeof(batch);
    batch.by_gpu = counts.data();
    batch.num_experts = kSplitExperts;
    batch.num_gpus = kSplitGpus;
  }
  SplitCall(const SplitCall&) = delete;
  SplitCall& operator=(const SplitCall&) = delete;

  std::vector<int64_t> counts = {10, 1, 4, 1,  //
                                 10, 1, 0, 9};
  std::vector<int64_t> quotas = std::vector<int64_t>(kSplitSlots, 77);
  std::vector<int64_t> own = std::vector<int64_t>(kSplitSlots, 77);
  std::vector<int32_t> tight = std::vector<int32_t>(kSplitGpus, 77);
  eplb_batch batch = {};
  eplb_split result = {};
};

// Returns the choices of rank 0's router, which counts[0] counts.
std::vector<int32_t> ChoicesOfRankZero() {
  std::vector<int32_t> ids(16, 0);
  ids[3] = 1;
  ids[5] = 3;
  ids[1] = ids[6] = ids[7] = ids[15] = 2;
  return ids;
}

eplb_choices SplitChoicesOf(const std::vector<int32_t>& ids, int64_t* counters) {
  eplb_choices choices = {};
  choices.struct_size = sizeof(choices);
  choices.expert_ids = ids.data();
  choices.counters = counters;
  choices.num_tokens = static_cast<int64_t>(ids.size());
  choices.top_k = 1;
  choices.num_experts = kSplitExperts;
  choices.id_type = EPLB_INT32;
  return choices;
}

class CSplitTest : public ::testing::Test {
 protected:
  CSplitTest() : job_(kSplitGpus) {
    for (int32_t rank = 0; rank < kSplitGpus; ++rank)
      job_.rank(rank).options.num_slots = kSplitSlots;
  }
  CJob job_;
};

TEST_F(CSplitTest, RanksSplitAlikeAndRouteTheirOwn) {
  ASSERT_EQ(job_.Start(), EPLB_OK);
  std::vector<std::vector<int64_t>> own(kSplitGpus);
  std::vector<std::vector<int64_t>> quotas(kSplitGpus);
  job_.Run([&](CRank& rank) {
    SplitCall batch;
    ASSERT_EQ(eplb_client_split(rank.client(), 2, &batch.batch, &batch.result), EPLB_OK)
        << eplb_last_message();
    EXPECT_EQ(batch.result.peak, 18);
    EXPECT_EQ(batch.result.mean, 18);
    EXPECT_EQ(batch.result.balancedness, 1);
    EXPECT_EQ(batch.result.equal_peak, 21);
    EXPECT_EQ(batch.result.num_tight_gpus, 2);
    EXPECT_THAT(batch.tight, ElementsAre(0, 1));
    quotas[static_cast<size_t>(rank.rank())] = batch.quotas;
    own[static_cast<size_t>(rank.rank())] = batch.own;
    if (rank.rank() != 0) return;
    const std::vector<int32_t> ids = ChoicesOfRankZero();
    std::vector<int64_t> counters(kSplitExperts + 1);
    const eplb_choices choices = SplitChoicesOf(ids, counters.data());
    std::vector<int32_t> slots(ids.size(), 77);
    ASSERT_EQ(eplb_client_route_split(rank.client(), 2, &choices, &batch.result, slots.data()),
              EPLB_OK)
        << eplb_last_message();
    std::vector<int64_t> met(kSplitSlots);
    for (const int32_t slot : slots) ++met[static_cast<size_t>(slot)];
    EXPECT_EQ(met, batch.own);
    EXPECT_THAT(counters, ElementsAre(10, 1, 4, 1, 0));
  });
  EXPECT_EQ(quotas[0], quotas[1]);
  for (size_t slot = 0; slot < kSplitSlots; ++slot) {
    EXPECT_EQ(own[0][slot] + own[1][slot], quotas[0][slot]);
  }
}

TEST_F(CSplitTest, TotalsAndPrefixesSplitAsTheMatrix) {
  ASSERT_EQ(job_.Start(), EPLB_OK);
  SplitCall by_gpu;
  eplb_client* client = job_.rank(1).client();
  ASSERT_EQ(eplb_client_split(client, 0, &by_gpu.batch, &by_gpu.result), EPLB_OK);
  const std::vector<int64_t> totals = {20, 2, 4, 10};
  SplitCall prefix;
  prefix.batch.by_gpu = nullptr;
  prefix.batch.num_gpus = 0;
  prefix.batch.totals = totals.data();
  prefix.batch.before = prefix.counts.data();
  prefix.batch.mine = prefix.counts.data() + kSplitExperts;
  ASSERT_EQ(eplb_client_split(client, 0, &prefix.batch, &prefix.result), EPLB_OK)
      << eplb_last_message();
  EXPECT_EQ(prefix.quotas, by_gpu.quotas);
  int64_t own = 0;
  for (const int64_t tokens : prefix.own) own += tokens;
  EXPECT_EQ(own, 20);
  SplitCall alone;
  alone.batch = prefix.batch;
  alone.batch.before = alone.batch.mine = nullptr;
  alone.result.own = nullptr;
  alone.result.tight_gpus = nullptr;
  ASSERT_EQ(eplb_client_split(client, 0, &alone.batch, &alone.result), EPLB_OK)
      << eplb_last_message();
  EXPECT_EQ(alone.quotas, by_gpu.quotas);
  EXPECT_EQ(alone.result.own, nullptr);
}

TEST_F(CSplitTest, MistakesAreNamedAndNothingIsWritten) {
  ASSERT_EQ(job_.Start(), EPLB_OK);
  const auto refusal = [&](const std::function<void(SplitCall&)>& change, int32_t layer = 0) {
    SplitCall batch;
    change(batch);
    const std::array<double, 4> before = {batch.result.peak, batch.result.mean,
                                          batch.result.balancedness, batch.result.equal_peak};
    EXPECT_EQ(eplb_client_split(job_.rank(0).client(), layer, &batch.batch, &batch.result),
              EPLB_INVALID_ARGUMENT);
    EXPECT_THAT(batch.quotas, Each(77));
    EXPECT_THAT(batch.own, Each(77));
    EXPECT_THAT(batch.tight, Each(77));
    EXPECT_THAT(before, Each(0));
    return std::string(eplb_last_message());
  };
  EXPECT_EQ(refusal([](SplitCall& b) { b.batch.struct_size = 8; }),
            "batch.struct_size is 8, expected sizeof, which is 48 in this library");
  EXPECT_EQ(refusal([](SplitCall& b) { b.result.struct_size = 8; }),
            "split.struct_size is 8, expected sizeof, which is 80 in this library");
  EXPECT_EQ(refusal([](SplitCall& b) { b.result.quotas = nullptr; }), "split.quotas is NULL");
  EXPECT_EQ(refusal([](SplitCall& b) { b.result.num_slots = -1; }),
            "split.num_slots is -1, expected at least 1");
  EXPECT_EQ(refusal([](SplitCall& b) { b.result.num_slots = 5; }),
            "layer 0: quotas of 5 slots, the placement has 6");
  EXPECT_EQ(refusal([](SplitCall& b) { b.batch.num_experts = 0; }),
            "batch.num_experts is 0, expected at least 1");
  EXPECT_EQ(refusal([](SplitCall& b) { b.batch.num_gpus = 0; }),
            "batch.num_gpus is 0, expected at least 1");
  EXPECT_EQ(refusal([](SplitCall& b) {
              b.batch.totals = b.counts.data();
              b.batch.by_gpu = nullptr;
            }),
            "batch.num_gpus is 2, expected 0 without by_gpu");
  EXPECT_EQ(refusal([](SplitCall& b) { b.counts[6] = -3; }),
            "layer 0: expert 2 has -3 tokens of GPU 1, expected 0..68719476736");
  EXPECT_EQ(refusal([](SplitCall&) {}, 3), "layer is 3, expected 0..2");
  SplitCall batch;
  EXPECT_EQ(eplb_client_split(nullptr, 0, &batch.batch, &batch.result), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "split: client is NULL");
}

TEST_F(CSplitTest, OptionsThatCannotBeLeaveThoseBefore) {
  ASSERT_EQ(job_.Start(), EPLB_OK);
  eplb_client* client = job_.rank(0).client();
  std::vector<double> speeds = {1, 0};
  eplb_split_options options = {};
  options.struct_size = sizeof(options);
  options.gpu_speeds = speeds.data();
  options.num_gpus = kSplitGpus;
  EXPECT_EQ(eplb_client_set_split_options(client, &options), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "GPU 1 is unusable, but the placement has experts on it");
  speeds[1] = 0.5;
  options.reserved = 1;
  EXPECT_EQ(eplb_client_set_split_options(client, &options), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "options.reserved is not 0");
  options.reserved = 0;
  options.num_gpus = 0;
  EXPECT_EQ(eplb_client_set_split_options(client, &options), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "options.num_gpus is 0, expected at least 1");
  options.gpu_speeds = nullptr;
  options.num_gpus = kSplitGpus;
  EXPECT_EQ(eplb_client_set_split_options(client, &options), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "options.num_gpus is 2, expected 0 without gpu_speeds");
  options.gpu_speeds = speeds.data();
  SplitCall batch;
  ASSERT_EQ(eplb_client_split(client, 0, &batch.batch, &batch.result), EPLB_OK);
  EXPECT_EQ(batch.result.peak, 18) << "as without options";
  options.num_gpus = kSplitGpus;
  ASSERT_EQ(eplb_client_set_split_options(client, &options), EPLB_OK) << eplb_last_message();
  ASSERT_EQ(eplb_client_split(client, 0, &batch.batch, &batch.result), EPLB_OK);
  EXPECT_EQ(batch.result.peak, 24) << "GPU 0 takes 24 tokens, GPU 1 12 at half the speed";
}

TEST_F(CSplitTest, CountsOfAllRanksAreCompared) {
  ASSERT_EQ(job_.Start(), EPLB_OK);
  std::vector<std::string> said(kSplitGpus);
  job_.Run([&](CRank& rank) {
    std::vector<int64_t> counts = {20, 2, 4, 10};
    EXPECT_EQ(eplb_client_check_counts(rank.client(), 1, counts.data(), counts.size()), EPLB_OK)
        << rank.message();
    counts[0] += rank.rank();
    EXPECT_EQ(eplb_client_check_counts(rank.client(), 1, counts.data(), counts.size()),
              EPLB_FAILED_PRECONDITION);
    said[static_cast<size_t>(rank.rank())] = rank.message();
  });
  EXPECT_THAT(said, Each("check_counts: tokens differs: rank 0 has 36 in 4 counts, rank 1 has 37 "
                         "in 4 counts"));
}

TEST_F(CSplitTest, RoutingByAnOlderSplitOrWithoutOwnQuotasIsRefused) {
  ASSERT_EQ(job_.Start(), EPLB_OK);
  const eplb_client* client = job_.rank(0).client();
  SplitCall batch;
  ASSERT_EQ(eplb_client_split(job_.rank(0).client(), 0, &batch.batch, &batch.result), EPLB_OK);
  const std::vector<int32_t> ids = ChoicesOfRankZero();
  std::vector<int32_t> slots(ids.size(), 77);
  const eplb_choices choices = SplitChoicesOf(ids, nullptr);
  batch.result.version = 5;
  EXPECT_EQ(eplb_client_route_split(client, 0, &choices, &batch.result, slots.data()),
            EPLB_FAILED_PRECONDITION);
  EXPECT_THAT(eplb_last_message(), HasSubstr("the split is of placement version 5"));
  batch.result.own = nullptr;
  EXPECT_EQ(eplb_client_route_split(client, 0, &choices, &batch.result, slots.data()),
            EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "split.own is NULL");
  EXPECT_THAT(slots, Each(77));
}

// ---- without a client ----

struct OwnedPlan {
  ~OwnedPlan() { eplb_plan_destroy(plan); }
  eplb_plan* plan = nullptr;
};

struct OwnedSplitter {
  ~OwnedSplitter() { eplb_splitter_destroy(splitter); }
  eplb_splitter* splitter = nullptr;
};

eplb_plan_options SplitShapeOf(const std::vector<int64_t>& slots) {
  eplb_plan_options options;
  EXPECT_EQ(eplb_plan_options_init(&options, sizeof(options)), EPLB_OK);
  options.num_layers = 1;
  options.num_experts = kSplitExperts;
  options.num_slots = kSplitSlots;
  options.num_gpus = kSplitGpus;
  options.previous = slots.data();
  return options;
}

TEST(CSplitterTest, SplitsUnderAPlacementThatExists) {
  const std::vector<int64_t> slots = {0, 1, 2, 3, 0, 1};
  const eplb_plan_options shape = SplitShapeOf(slots);
  OwnedSplitter splitter;
  {
    OwnedPlan plan;
    ASSERT_EQ(eplb_plan_from_maps(&shape, &plan.plan), EPLB_OK) << eplb_last_message();
    double figure = 0;
    EXPECT_EQ(eplb_plan_copy_figures(plan.plan, &figure, nullptr), EPLB_FAILED_PRECONDITION);
    ASSERT_EQ(eplb_splitter_create(plan.plan, nullptr, &splitter.splitter), EPLB_OK);
  }  // the plan may go first
  SplitCall batch;
  ASSERT_EQ(eplb_splitter_split(splitter.splitter, 0, &batch.batch, 1, &batch.result), EPLB_OK)
      << eplb_last_message();
  EXPECT_EQ(batch.result.peak, 18);
  EXPECT_EQ(batch.result.version, 0);
  EXPECT_EQ(batch.own[3], 9) << "GPU 1's own";
}

TEST(CSplitterTest, MistakesAreNamed) {
  std::vector<int64_t> slots = {0, 1, 2, 3, 0, 1};
  eplb_plan_options shape = SplitShapeOf(slots);
  OwnedPlan plan;
  ASSERT_EQ(eplb_plan_from_maps(&shape, &plan.plan), EPLB_OK) << eplb_last_message();
  OwnedSplitter splitter;
  EXPECT_EQ(eplb_splitter_create(nullptr, nullptr, &splitter.splitter), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "plan is NULL");
  const std::vector<double> speeds = {1, 0};
  eplb_split_options options = {};
  options.struct_size = sizeof(options);
  options.gpu_speeds = speeds.data();
  options.num_gpus = kSplitGpus;
  EXPECT_EQ(eplb_splitter_create(plan.plan, &options, &splitter.splitter), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "GPU 1 is unusable, but the placement has experts on it");
  EXPECT_EQ(splitter.splitter, nullptr);
  SplitCall batch;
  EXPECT_EQ(eplb_splitter_split(nullptr, 0, &batch.batch, 0, &batch.result), EPLB_INVALID_ARGUMENT);
  OwnedPlan none;
  slots[0] = 2;
  slots[4] = 2;
  EXPECT_EQ(eplb_plan_from_maps(&shape, &none.plan), EPLB_INVALID_ARGUMENT);
  EXPECT_THAT(eplb_last_message(), HasSubstr("expert 0"));
  shape.previous = nullptr;
  EXPECT_EQ(eplb_plan_from_maps(&shape, &none.plan), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), "previous is NULL");
  EXPECT_EQ(none.plan, nullptr);
}

}  // namespace
}  // namespace eplb
