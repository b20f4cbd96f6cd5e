#include "placement/search/split_peaks.h"

#include <gtest/gtest.h>

#include <random>

#include "placement/split/batch_split.h"

namespace eplb {
namespace {

constexpr uint64_t kSplitPeaksSeed = 41;

struct PeaksCase {
  int32_t experts, slots, gpus;
  std::vector<double> speeds;
};

TEST(SplitPeaksTest, PeaksAreThoseOfEvaluateBatch) {
  std::mt19937_64 random(kSplitPeaksSeed);
  for (const PeaksCase& shape : {PeaksCase{8, 12, 4, {}},
                                 {8, 12, 4, {1, 0.5, 2, 1}},
                                 {64, 72, 8, {}},
                                 {96, 140, 70, {}},
                                 {40, 300, 300, {}}}) {
    const Topology topology = *Topology::Make({.num_layers = 1,
                                               .num_experts = shape.experts,
                                               .num_slots = shape.slots,
                                               .num_gpus = shape.gpus});
    const GpuSpeeds speeds = *GpuSpeeds::Make(shape.gpus, shape.speeds, {});
    Domain domain = DomainOf(topology, speeds, 0, shape.gpus);
    IndexMatrix slots(1, shape.slots);
    for (int32_t slot = 0; slot < shape.slots; ++slot) {
      slots(0, slot) = slot < shape.experts
                           ? slot
                           : static_cast<int32_t>(random() % static_cast<uint64_t>(shape.experts));
    }
    const Placement placement = *Placement::FromSlots(topology, slots);
    std::vector<std::vector<double>> batches;
    double expected = 0;
    for (int batch = 0; batch < 5; ++batch) {
      LoadMatrix counts(1, shape.experts);
      for (int64_t& cell : counts.reshaped()) cell = int64_t{1000} << random() % 6;
      const RealMatrix real = counts.cast<double>();
      batches.emplace_back(real.data(), real.data() + real.size());
      const Evaluation split = *EvaluateBatch(*Load::FromCounts(counts), placement, &speeds);
      const double mean = static_cast<double>(counts.sum()) / speeds.total();
      expected += split.max_gpu_load[0] / mean / 5;
    }
    batches.emplace_back(static_cast<size_t>(shape.experts), 0);  // idle: left out
    domain.load = batches.front();
    SplitPeaks peaks(domain, batches);
    const std::span<const int32_t> layout(slots.data(), static_cast<size_t>(slots.size()));
    EXPECT_NEAR(peaks.MeanOf(layout), expected, 1e-3 * expected);
  }
}

TEST(SplitPeaksTest, WithoutABatchTheMeanIsOne) {
  Domain domain;
  domain.load = {0, 0};
  domain.slots = {1, 1};
  domain.speed = {1, 1};
  SplitPeaks peaks(domain, {});
  EXPECT_EQ(peaks.MeanOf(std::vector<int32_t>{0, 1}), 1);
}

}  // namespace
}  // namespace eplb
