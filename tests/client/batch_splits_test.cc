#include "client/batch_splits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <Eigen/Core>

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LayerId kLayer{1};

// Two GPUs of two slots. In layer 1, experts 0 and 1 are on GPU 0, experts 0 and 2 on GPU 1.
std::shared_ptr<const Placement> TwoGpus(std::vector<int32_t> layer = {0, 1, 0, 2}) {
  const Topology topology =
      Topology::Make({.num_layers = 2, .num_experts = 3, .num_slots = 4, .num_gpus = 2}).value();
  IndexMatrix slots(2, 4);
  slots.row(0) = Eigen::Map<const IndexMatrix>(std::vector<int32_t>{0, 1, 2, 0}.data(), 1, 4);
  slots.row(1) = Eigen::Map<const IndexMatrix>(layer.data(), 1, 4);
  return std::make_shared<const Placement>(Placement::FromSlots(topology, slots).value());
}

struct Written {
  absl::StatusOr<SplitFigures> figures = SplitFigures{};
  std::vector<int64_t> quotas;
  std::vector<int64_t> own;
};

Written SplitOf(BatchSplits& splits, const BatchCounts& counts, int32_t gpu = -1,
                LayerId layer = kLayer) {
  Written written;
  written.quotas.assign(4, 77);
  if (gpu >= 0) written.own.assign(4, 77);
  written.figures = splits.Split(
      layer, counts, {.self = GpuId{gpu}, .quotas = written.quotas, .own = written.own});
  return written;
}

TEST(BatchSplitsTest, TotalsGiveQuotasAndFigures) {
  BatchSplits splits(TwoGpus(), 7);
  const std::vector<int64_t> totals = {10, 6, 0};
  const Written split = SplitOf(splits, {.totals = totals});
  ASSERT_TRUE(split.figures.ok()) << split.figures.status();
  EXPECT_THAT(split.quotas, ElementsAre(2, 6, 8, 0));
  EXPECT_EQ(split.figures->version, 7);
  EXPECT_EQ(split.figures->peak, 8);
  EXPECT_EQ(split.figures->mean, 8);
  EXPECT_EQ(split.figures->balancedness, 1);
  EXPECT_EQ(split.figures->equal_peak, 11);
  EXPECT_THAT(split.figures->tight_gpus, ElementsAre(0, 1));
}

TEST(BatchSplitsTest, OwnQuotasOfAllGpusSumToTheQuotas) {
  BatchSplits splits(TwoGpus(), 0);
  const std::vector<int64_t> by_gpu = {9, 1, 0,  //
                                       1, 5, 0};
  const Written first = SplitOf(splits, {.by_gpu = by_gpu}, 0);
  const Written second = SplitOf(splits, {.by_gpu = by_gpu}, 1);
  ASSERT_TRUE(first.figures.ok() && second.figures.ok()) << first.figures.status();
  EXPECT_THAT(first.quotas, ElementsAre(2, 6, 8, 0)) << "those of the totals";
  EXPECT_EQ(second.quotas, first.quotas);
  EXPECT_THAT(first.own, ElementsAre(2, 1, 7, 0)) << "its own GPU first";
  EXPECT_THAT(second.own, ElementsAre(0, 5, 1, 0));
  const Written unasked = SplitOf(splits, {.by_gpu = by_gpu});
  EXPECT_EQ(unasked.quotas, first.quotas);
}

TEST(BatchSplitsTest, SplitsFollowThePlacement) {
  BatchSplits splits(TwoGpus(), 1);
  const std::vector<int64_t> totals = {10, 6, 0};
  ASSERT_TRUE(SplitOf(splits, {.totals = totals}).figures.ok());
  splits.Show(TwoGpus({2, 0, 1, 0}), 2);
  const Written split = SplitOf(splits, {.totals = totals});
  ASSERT_TRUE(split.figures.ok()) << split.figures.status();
  EXPECT_THAT(split.quotas, ElementsAre(0, 8, 6, 2));
  EXPECT_EQ(split.figures->version, 2);
}

TEST(BatchSplitsTest, LayersThatASwitchChangedArePreparedAhead) {
  BatchSplits splits(TwoGpus(), 1);
  const auto number_prepared = [&splits] {
    int number = 0;
    while (splits.PrepareNext().value()) ++number;
    return number;
  };
  EXPECT_EQ(number_prepared(), 2);
  EXPECT_EQ(number_prepared(), 0);
  splits.Show(TwoGpus({2, 0, 1, 0}), 2);
  EXPECT_EQ(number_prepared(), 1) << "layer 1";
  ASSERT_TRUE(splits.SetOptions({.slack = 0.5}).ok());
  EXPECT_EQ(number_prepared(), 1) << "SetOptions has prepared layer 0";
  splits.Show(TwoGpus({0, 1, 0, 2}), 3);
  const std::vector<int64_t> totals = {10, 6, 0};
  ASSERT_TRUE(SplitOf(splits, {.totals = totals}).figures.ok());
  EXPECT_EQ(number_prepared(), 0) << "the split has prepared its layer";
}

TEST(BatchSplitsTest, AFasterGpuGetsMoreUnderEveryPlacement) {
  BatchSplits splits(TwoGpus(), 0);
  ASSERT_TRUE(splits.SetOptions({.gpu_speeds = {1, 0.5}}).ok());
  const std::vector<int64_t> totals = {9, 0, 0};
  const Written before = SplitOf(splits, {.totals = totals});
  EXPECT_THAT(before.quotas, ElementsAre(6, 0, 3, 0));
  EXPECT_EQ(before.figures->peak, 6);
  EXPECT_EQ(before.figures->mean, 6);
  EXPECT_EQ(before.figures->equal_peak, 8) << "4 tokens at half the speed";
  splits.Show(TwoGpus({1, 0, 2, 0}), 1);
  EXPECT_THAT(SplitOf(splits, {.totals = totals}).quotas, ElementsAre(0, 6, 0, 3));
}

// Returns the error for counts that are right except for `change`; nothing is written.
std::string Refusal(const std::function<void(BatchCounts&)>& change, int32_t gpu = -1) {
  BatchSplits splits(TwoGpus(), 0);
  static const std::vector<int64_t> right = {10, 6, 0};
  BatchCounts counts{.totals = right};
  change(counts);
  const Written split = SplitOf(splits, counts, gpu);
  EXPECT_EQ(split.figures.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(split.quotas, ElementsAre(77, 77, 77, 77));
  EXPECT_THAT(split.own, ::testing::Each(77));
  return std::string(split.figures.status().message());
}

TEST(BatchSplitsTest, CountsThatDoNotFitAreNamed) {
  const std::vector<int64_t> one = {1};
  const std::vector<int64_t> two = {1, 2};
  const std::vector<int64_t> three = {1, 2, 3};
  EXPECT_EQ(Refusal([&](BatchCounts& c) { c.totals = two; }),
            "layer 1: counts of 2 experts, the placement has 3");
  EXPECT_EQ(Refusal([&](BatchCounts& c) { c.totals = {}; }),
            "layer 1: neither totals nor by_gpu given, expected one of them");
  EXPECT_EQ(Refusal([&](BatchCounts& c) { c.by_gpu = three; }),
            "layer 1: both totals and by_gpu given, expected one of them");
  EXPECT_EQ(Refusal([&](BatchCounts& c) { c = {.by_gpu = three}; }),
            "layer 1: 3 counts by GPU, the placement has 2 GPUs x 3 experts: 6");
  EXPECT_EQ(Refusal([&](BatchCounts& c) { c.before = three; }),
            "layer 1: before is given without mine");
  EXPECT_EQ(Refusal([&](BatchCounts& c) { c.mine = three; }),
            "layer 1: mine is given without before");
  EXPECT_EQ(Refusal([&](BatchCounts& c) { c.totals = one; }),
            "layer 1: counts of 1 expert, the placement has 3");
  EXPECT_EQ(
      Refusal([](BatchCounts&) {}, 0),
      "layer 1: own quotas asked for by totals alone, expected counts by GPU, or before and mine");
  const std::vector<int64_t> six = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(Refusal([&](BatchCounts& c) { c = {.by_gpu = six}; }, 2),
            "layer 1: own quotas of GPU 2 asked for, expected 0..1");
}

TEST(BatchSplitsTest, NumbersThatCannotBeAreNamed) {
  const std::vector<int64_t> negative = {1, -2, 3};
  EXPECT_THAT(Refusal([&](BatchCounts& c) { c.totals = negative; }),
              HasSubstr("layer 1: expert 1 has -2 tokens, expected 0 or more"));
  const std::vector<int64_t> large = {1, int64_t{1} << 36, 0};
  EXPECT_THAT(Refusal([&](BatchCounts& c) { c.totals = large; }), HasSubstr("expert 1 has"));
  const std::vector<int64_t> of_gpu = {1, 2, 3, 4, 5, -6};
  EXPECT_EQ(Refusal([&](BatchCounts& c) { c = {.by_gpu = of_gpu}; }, 0),
            "layer 1: expert 2 has -6 tokens of GPU 1, expected 0..68719476736");
  const std::vector<int64_t> none = {0, 0, 0};
  const std::vector<int64_t> much = {4, 7, 0};
  const auto prefix = [&](std::span<const int64_t> before, std::span<const int64_t> mine) {
    return Refusal(
        [&](BatchCounts& c) {
          c.before = before;
          c.mine = mine;
        },
        0);
  };
  EXPECT_EQ(prefix(none, much),
            "layer 1: expert 1 has 0 tokens of lower ranks and 7 of this one, 6 in all");
  EXPECT_THAT(prefix(negative, none), HasSubstr("expert 1 has -2 tokens of lower ranks"));
  const std::vector<int64_t> huge = {INT64_MAX, 0, 0};
  EXPECT_THAT(prefix(huge, huge), HasSubstr("expert 0 has"));
}

TEST(BatchSplitsTest, AnExpertOnAnUnusableGpuIsRefusedBeforeAndAfterASwitch) {
  const std::vector<int64_t> totals = {10, 6, 0};
  BatchSplits splits(TwoGpus(), 0);
  for (const auto& [options, said] :
       {std::pair<SplitOptions, std::string>{
            {.gpu_speeds = {1, 0}}, "GPU 1 is unusable, but the placement has experts on it"},
        {{.gpu_speeds = {1, 1, 1}}, "3"},
        {{.gpu_speeds = {1, -1}}, "GPU 1"},
        {{.slack = 2}, "slack is 2, expected 0..1"},
        {{.slack = std::nan("")}, "slack is nan"}}) {
    const absl::Status status = splits.SetOptions(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
    EXPECT_TRUE(SplitOf(splits, {.totals = totals}).figures.ok()) << "the options are as before";
  }
  // A placement that leaves GPU 1 empty takes such speeds; one that does not is refused later.
  const Topology topology =
      Topology::Make({.num_layers = 2, .num_experts = 1, .num_slots = 2, .num_gpus = 2}).value();
  IndexMatrix slots(2, 2);
  slots << 0, -1, 0, -1;
  BatchSplits one(std::make_shared<const Placement>(Placement::FromSlots(topology, slots).value()),
                  0);
  ASSERT_TRUE(one.SetOptions({.gpu_speeds = {1, 0}}).ok());
  one.Show(std::make_shared<const Placement>(Placement::Static(topology)), 1);
  const std::vector<int64_t> counts = {5};
  std::vector<int64_t> quotas = {77, 77};
  const auto split = one.Split(kLayer, {.totals = counts}, {.quotas = quotas});
  EXPECT_EQ(split.status().message(), "GPU 1 is unusable, but the placement has experts on it");
  EXPECT_THAT(quotas, ElementsAre(77, 77));
}

TEST(BatchSplitsTest, ThreadsGetTheSameQuotas) {
  BatchSplits splits(TwoGpus(), 0);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  threads.reserve(wrong.size());
  for (size_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([&splits, &wrong, thread] {
      for (int64_t step = 0; step < 200; ++step) {
        const std::vector<int64_t> totals = {10 + 2 * step, 6, 0};
        const Written split = SplitOf(splits, {.totals = totals});
        const int64_t most = 8 + step;
        const bool right = split.figures.ok() && split.figures->peak == static_cast<double>(most) &&
                           split.quotas[0] == most - 6 && split.quotas[2] == most;
        wrong[thread] += right ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::accumulate(wrong.begin(), wrong.end(), 0), 0);
}

}  // namespace
}  // namespace eplb
