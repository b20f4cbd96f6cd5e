// Exact splits of batches by the C ABI: with a client and without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "client/c/eplb.h"
#include "client/c/eplb_plan.h"
#include "tests/client/c/c_rank.h"

namespace eplb {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int32_t kSplitExperts = kSmallExperts;
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

eplb_choices SplitChoicesOf(std::span<const int32_t> ids) {
  eplb_choices choices = {};
  choices.struct_size = sizeof(choices);
  choices.expert_ids = ids.data();
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
  void SetUp() override { ASSERT_EQ(job_.Start(), EPLB_OK); }
  CJob job_;
};

TEST_F(CSplitTest, TotalsAndPrefixesSplitAsTheMatrix) {
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

TEST_F(CSplitTest, CountForAndRouteFromAreTheSplitOfTheBatch) {
  SplitCall call;
  eplb_client* client = job_.rank(1).client();
  ASSERT_EQ(eplb_client_split(client, 0, &call.batch, &call.result), EPLB_OK);
  std::vector<int32_t> ids;
  for (int32_t expert = 0; expert < kSplitExperts; ++expert) {
    ids.insert(ids.end(), static_cast<size_t>(call.counts[static_cast<size_t>(4 + expert)]),
               expert);
  }
  const eplb_choices choices = SplitChoicesOf(ids);
  std::vector<int32_t> expected(ids.size());
  ASSERT_EQ(eplb_client_route_split(client, 0, &choices, &call.result, expected.data()), EPLB_OK);

  eplb_split_setup setup = {};
  setup.struct_size = sizeof(setup);
  setup.max_tokens = static_cast<int64_t>(ids.size());
  setup.split_on_gpu = 2;
  ExpectInvalid(eplb_client_prepare_split(client, &setup),
                "setup.split_on_gpu is 2, expected 0 or 1");
  setup.split_on_gpu = 1;  // has no effect on tensors in host memory
  ExpectInvalid(eplb_client_prepare_split(client, &setup), "setup.top_k is 0, expected at least 1");
  setup.top_k = 1;
  setup.deadline_s = std::numeric_limits<double>::quiet_NaN();
  ExpectInvalid(eplb_client_prepare_split(client, &setup), "setup.deadline_s is nan");
  setup.deadline_s = 0;
  ASSERT_EQ(eplb_client_prepare_split(client, &setup), EPLB_OK) << eplb_last_message();
  std::vector<int64_t> row(kSplitExperts, 77);
  ASSERT_EQ(eplb_client_count_for(client, 0, &choices, row.data(), nullptr), EPLB_OK);
  EXPECT_THAT(row, ::testing::ElementsAreArray(call.counts.begin() + 4, call.counts.end()));
  std::vector<int32_t> slots(ids.size());
  ASSERT_EQ(eplb_client_route_from(client, 0, call.counts.data(), slots.data(), nullptr), EPLB_OK);
  EXPECT_EQ(slots, expected);
  eplb_split_figures figures = {};
  figures.struct_size = sizeof(figures);
  ASSERT_EQ(eplb_client_split_figures(client, &figures), EPLB_OK);
  EXPECT_EQ(figures.batches, 1);
  EXPECT_EQ(figures.late + figures.refused + figures.drawn, 0);
  EXPECT_EQ(figures.version, call.result.version);
  EXPECT_EQ(figures.peak, call.result.peak);
  EXPECT_EQ(figures.equal_peak, call.result.equal_peak);
  EXPECT_EQ(eplb_client_route_from(client, 0, call.counts.data(), slots.data(), nullptr),
            EPLB_FAILED_PRECONDITION);
  EXPECT_STREQ(eplb_last_message(),
               "route_from of layer 0 was called before its count_for, which each call needs");
  ASSERT_EQ(eplb_client_count_for(client, 0, &choices, row.data(), nullptr), EPLB_OK);
  ExpectInvalid(eplb_client_count_for(client, 0, &choices, nullptr, nullptr), "row is NULL");
  ExpectInvalid(eplb_client_route_from(client, 0, nullptr, slots.data(), nullptr),
                "gathered is NULL");
}

// Arrays of each call are new, so that the client remembers them.
TEST_F(CSplitTest, CallsOfTwoThreadsAtOnceSucceedOrAreRefused) {
  eplb_client* client = job_.rank(1).client();
  eplb_split_setup setup = {};
  setup.struct_size = sizeof(setup);
  setup.max_tokens = 1;
  setup.top_k = 1;
  ASSERT_EQ(eplb_client_prepare_split(client, &setup), EPLB_OK) << eplb_last_message();
  constexpr int32_t kCalls = 20'000;
  const auto count = [client](int32_t layer) {
    std::vector<int64_t> rows(kCalls + kSplitExperts);
    const std::vector<int32_t> ids(kCalls);
    for (size_t i = 0; i < kCalls; ++i) {
      eplb_choices choices = SplitChoicesOf(std::span(ids).subspan(i, 1));
      const int32_t code = eplb_client_count_for(client, layer, &choices, &rows[i], nullptr);
      if (code == EPLB_OK) continue;
      ASSERT_EQ(code, EPLB_FAILED_PRECONDITION) << eplb_last_message();
      ASSERT_STREQ(eplb_last_message(),
                   "count_for was called while another thread was inside count_for, route_from or "
                   "prepare_split");
    }
  };
  std::thread other(count, 0);
  count(1);
  other.join();
}

// Mistakes that only this interface can make; tests/client/split_test.cc has the others.
TEST_F(CSplitTest, MistakesAreNamedAndNothingIsWritten) {
  eplb_client* client = job_.rank(0).client();
  struct Mistake {
    void (*make)(SplitCall&);
    const char* message;
  };
  const Mistake mistakes[] = {
      {[](SplitCall& b) { b.batch.struct_size = 8; },
       "batch.struct_size is 8, expected sizeof, which is 48 in this library"},
      {[](SplitCall& b) { b.result.struct_size = 8; },
       "split.struct_size is 8, expected sizeof, which is 80 in this library"},
      {[](SplitCall& b) { b.result.quotas = nullptr; }, "split.quotas is NULL"},
      {[](SplitCall& b) { b.result.num_slots = -1; }, "split.num_slots is -1, expected at least 1"},
      {[](SplitCall& b) { b.batch.num_experts = 0; },
       "batch.num_experts is 0, expected at least 1"},
      {[](SplitCall& b) { b.batch.num_gpus = 0; }, "batch.num_gpus is 0, expected at least 1"},
      {[](SplitCall& b) { std::swap(b.batch.totals, b.batch.by_gpu); },
       "batch.num_gpus is 2, expected 0 without by_gpu"},
      {[](SplitCall& b) { b.batch.totals = b.counts.data(); },
       "layer 0: both totals and by_gpu given, expected one of them"},
  };
  for (const Mistake& mistake : mistakes) {
    SplitCall batch;
    mistake.make(batch);
    ExpectInvalid(eplb_client_split(client, 0, &batch.batch, &batch.result), mistake.message);
    for (const auto& written : {batch.quotas, batch.own}) EXPECT_THAT(written, Each(77));
    EXPECT_THAT(batch.tight, Each(77));
  }
  SplitCall batch;
  ExpectInvalid(eplb_client_split(client, 3, &batch.batch, &batch.result),
                "layer is 3, expected 0..2");
  ExpectInvalid(eplb_client_split(nullptr, 0, &batch.batch, &batch.result),
                "split: client is NULL");
  const std::vector<int32_t> ids(16, 0);
  std::vector<int32_t> slots(ids.size(), 77);
  const eplb_choices choices = SplitChoicesOf(ids);
  batch.result.own = nullptr;
  ExpectInvalid(eplb_client_route_split(client, 0, &choices, &batch.result, slots.data()),
                "split.own is NULL");
  EXPECT_THAT(slots, Each(77));
}

TEST_F(CSplitTest, OptionsThatCannotBeLeaveThoseBefore) {
  eplb_client* client = job_.rank(0).client();
  const std::vector<double> speeds = {1, 0.5};
  eplb_split_options good = {};
  good.struct_size = sizeof(good);
  good.gpu_speeds = speeds.data();
  good.num_gpus = kSplitGpus;
  struct Mistake {
    void (*make)(eplb_split_options&);
    const char* message;
  };
  const Mistake mistakes[] = {
      {[](eplb_split_options& o) { o.reserved = 1; }, "options.reserved is not 0"},
      {[](eplb_split_options& o) { o.num_gpus = 0; }, "options.num_gpus is 0, expected at least 1"},
      {[](eplb_split_options& o) { o.gpu_speeds = nullptr; },
       "options.num_gpus is 2, expected 0 without gpu_speeds"},
  };
  for (const Mistake& mistake : mistakes) {
    eplb_split_options options = good;
    mistake.make(options);
    ExpectInvalid(eplb_client_set_split_options(client, &options), mistake.message);
  }
  SplitCall batch;
  ASSERT_EQ(eplb_client_split(client, 0, &batch.batch, &batch.result), EPLB_OK);
  EXPECT_EQ(batch.result.peak, 18) << "as without options";
  ASSERT_EQ(eplb_client_set_split_options(client, &good), EPLB_OK) << eplb_last_message();
  ASSERT_EQ(eplb_client_split(client, 0, &batch.batch, &batch.result), EPLB_OK);
  EXPECT_EQ(batch.result.peak, 24) << "GPU 0 takes 24 tokens, GPU 1 12 at half the speed";
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
  SplitCall refused;
  ExpectInvalid(eplb_splitter_split(splitter.splitter, 0, &refused.batch, 2, &refused.result),
                "layer 0: own quotas of GPU 2 asked for, expected 0..1");
  EXPECT_THAT(refused.quotas, Each(77));
}

TEST(CSplitterTest, MistakesAreNamed) {
  std::vector<int64_t> slots = {0, 1, 2, 3, 0, 1};
  eplb_plan_options shape = SplitShapeOf(slots);
  OwnedPlan plan;
  ASSERT_EQ(eplb_plan_from_maps(&shape, &plan.plan), EPLB_OK) << eplb_last_message();
  OwnedSplitter splitter;
  ExpectInvalid(eplb_splitter_create(nullptr, nullptr, &splitter.splitter), "plan is NULL");
  const std::vector<double> speeds = {1, 0};
  eplb_split_options options = {};
  options.struct_size = sizeof(options);
  options.gpu_speeds = speeds.data();
  options.num_gpus = kSplitGpus;
  ExpectInvalid(eplb_splitter_create(plan.plan, &options, &splitter.splitter),
                "GPU 1 is unusable, but the placement has experts on it");
  EXPECT_EQ(splitter.splitter, nullptr);
  SplitCall batch;
  EXPECT_EQ(eplb_splitter_split(nullptr, 0, &batch.batch, 0, &batch.result), EPLB_INVALID_ARGUMENT);
  OwnedPlan none;
  slots[0] = 2;
  slots[4] = 2;
  EXPECT_EQ(eplb_plan_from_maps(&shape, &none.plan), EPLB_INVALID_ARGUMENT);
  EXPECT_THAT(eplb_last_message(), HasSubstr("expert 0"));
  shape.previous = nullptr;
  ExpectInvalid(eplb_plan_from_maps(&shape, &none.plan), "previous is NULL");
  EXPECT_EQ(none.plan, nullptr);
}

}  // namespace
}  // namespace eplb
