// The loop of a split in the order of a stream: counts, the ranks' rows together, slots. Bits are
// those of the CPU, one captured graph serves all placements, and no choice is lost without a
// split.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "client/split_loop.h"
#include "tests/cuda/require_gpu.h"
#include "tests/gpu/split_loop_world.h"
#include "tests/placement/random_placement.h"
#ifdef EPLB_FAKE_CUDA
#include "tests/support/fake_cuda/fake_cuda.h"
#endif

namespace eplb {
namespace {

// Number of pairs of an expert with several GPUs and one of these.
int32_t NumPartsOf(const Placement& placement, LayerId layer) {
  int32_t parts = 0;
  for (int32_t expert = 0; expert < placement.topology().num_experts(); ++expert) {
    std::vector<int32_t> gpus;
    for (const int32_t slot : placement.ReplicasOf(layer, ExpertId{expert})) {
      gpus.push_back(placement.topology().GpuOf(SlotId{slot}).value);
    }
    std::ranges::sort(gpus);
    gpus.erase(std::unique(gpus.begin(), gpus.end()), gpus.end());
    if (gpus.size() > 1) parts += static_cast<int32_t>(gpus.size());
  }
  return parts;
}

class SplitLoopGpuTest : public cuda::testing::StreamTest<> {
 protected:
  void ExpectTheBitsOfTheCpu(bool split_on_gpu);
  void ExpectDrawsIfRefused(bool split_on_gpu);
  void ExpectTheSumsOfTheCpu(bool split_on_gpu);
#ifdef EPLB_FAKE_CUDA
  void ExpectNoAllocationsAndWaits(bool split_on_gpu);
#endif
  // Launches of a layer, captured once and replayed; the stand-in for CUDA has no graphs.
  void RunBatch(SplitLoopWorld& world, int32_t layer) {
#ifdef EPLB_FAKE_CUDA
    const absl::Status launched = world.Launch(layer, stream_.get());
    ASSERT_TRUE(launched.ok()) << launched;
#else
    auto& graph = graphs_[static_cast<size_t>(layer)];
    if (graph == nullptr) {
      graph = cuda::testing::Capture(
          stream_.get(), [&](cudaStream_t stream) { return world.Launch(layer, stream); });
    }
    ASSERT_EQ(cudaGraphLaunch(graph.get(), stream_.get()), cudaSuccess);
#endif
    Synchronize();
  }
  void NewWorld() {
#ifndef EPLB_FAKE_CUDA
    for (auto& graph : graphs_) graph.reset();
#endif
  }

#ifndef EPLB_FAKE_CUDA
  cuda::testing::GraphExec graphs_[kLoopLayers];
#endif
};

void SplitLoopGpuTest::ExpectTheBitsOfTheCpu(bool split_on_gpu) {
  constexpr uint64_t kSeed = 46;
  constexpr int32_t kWorlds = 40;
  constexpr int32_t kPlacements = 13;
  Random random(kSeed);
  int32_t num_batches = 0;
  int32_t num_more = 0;  // placements with more parts than the one that was captured
  int32_t num_fewer = 0;
  for (int32_t number = 0; number < kWorlds; ++number) {
    const int32_t num_gpus = number < 8 ? 1 << (number % 7) : Pick(random, 1, 64);
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " world ", number, " of ", num_gpus, " GPUs"));
    NewWorld();
    SplitLoopWorld world(random, num_gpus, absl::Seconds(60), split_on_gpu);
    world.SetTokens(Pick(random, 1, kLoopTokens));
    const int32_t first_parts = NumPartsOf(world.placement(), LayerId{0});
    for (int32_t i = 0; i < kPlacements; ++i) {
      if (i > 0) world.Switch();
      const int32_t parts = NumPartsOf(world.placement(), LayerId{0});
      num_more += parts > first_parts ? 1 : 0;
      num_fewer += parts < first_parts ? 1 : 0;
      for (int32_t layer = 0; layer < kLoopLayers; ++layer, ++num_batches) {
        world.DrawBatch();
        RunBatch(world, layer);
        ASSERT_EQ(world.Slots(), world.SlotsOfTheCpu(layer)) << "placement " << i;
        const SplitFigures figures = world.loop().figures().newest;
        EXPECT_EQ(figures.peak, world.figures_of_the_cpu().peak);
        EXPECT_EQ(figures.mean, world.figures_of_the_cpu().mean);
        EXPECT_EQ(figures.equal_peak, world.figures_of_the_cpu().equal_peak);
        EXPECT_EQ(figures.version, i);
      }
    }
    const SplitLoopFigures figures = world.loop().figures();
    EXPECT_EQ(figures.batches, kPlacements * kLoopLayers);
    EXPECT_EQ(figures.late + figures.refused + figures.drawn, 0);
  }
  EXPECT_GE(num_batches, 1'000);
  EXPECT_GT(num_more, kWorlds);
  EXPECT_GT(num_fewer, kWorlds);
}

TEST_F(SplitLoopGpuTest, EqualsTheCpuOnAThousandLayersAcrossSwitches) {
  ExpectTheBitsOfTheCpu(/*split_on_gpu=*/false);
}

TEST_F(SplitLoopGpuTest, AKernelEqualsTheCpuOnAThousandLayersAcrossSwitches) {
  ExpectTheBitsOfTheCpu(/*split_on_gpu=*/true);
}

TEST_F(SplitLoopGpuTest, AKernelSplitsByTheOptionsOfTheCpu) {
  Random random(51);
  SplitLoopWorld world(random, 4, absl::Seconds(60), /*split_on_gpu=*/true);
  for (const SplitOptions& options : {SplitOptions{.gpu_speeds = {1, .5, 2, 1}, .slack = .1},
                                      SplitOptions{.slack = .3}, SplitOptions{}}) {
    ASSERT_TRUE(world.SetOptions(options).ok());
    for (int32_t layer = 0; layer < kLoopLayers; ++layer) {
      world.DrawBatch();
      RunBatch(world, layer);
      ASSERT_EQ(world.Slots(), world.SlotsOfTheCpu(layer));
      EXPECT_EQ(world.loop().figures().newest.peak, world.figures_of_the_cpu().peak);
    }
  }
}

TEST_F(SplitLoopGpuTest, FiguresAreThoseOfThePlacementThatIsShown) {
  Random random(52);
  SplitLoopWorld world(random, 4, absl::Seconds(60), /*split_on_gpu=*/true);
  world.DrawBatch();
  RunBatch(world, 0);
  world.Switch();
  EXPECT_EQ(world.loop().figures().newest.peak, 0) << "the placement of the batch is gone";
  EXPECT_EQ(world.loop().figures().batches, 1);
  world.DrawBatch();
  RunBatch(world, 1);
  (void)world.SlotsOfTheCpu(1);
  EXPECT_EQ(world.loop().figures().newest.peak, world.figures_of_the_cpu().peak);
  world.Switch();
  EXPECT_EQ(world.loop().figures().newest.version, 1) << "read before the switch";
}

// Sums of the batches that RunBatch ran between two calls of TakeSums.
void SplitLoopGpuTest::ExpectTheSumsOfTheCpu(bool split_on_gpu) {
  Random random(56);
  NewWorld();
  SplitLoopWorld world(random, 4, absl::Seconds(60), split_on_gpu);
  const auto take = [&](int32_t layer) { return world.loop().TakeSums(layer, world.placement()); };
  EXPECT_EQ(take(0)->tokens, 0) << "no batch yet";
  for (const int32_t num_batches : {1, 3, 0, 2}) {
    SplitSums expected;
    world.SetTokens(num_batches == 3 ? 0 : kLoopTokens);  // other ranks have theirs
    NewWorld();
    for (int32_t i = 0; i < num_batches; ++i) {
      world.DrawBatch();
      RunBatch(world, 0);
      (void)world.SlotsOfTheCpu(0);
      const SplitSums batch = world.SumsOfTheCpu(0);
      expected.tokens += batch.tokens;
      expected.peak += batch.peak;
      expected.peak_static += batch.peak_static;
      expected.peak_without_eplb += batch.peak_without_eplb;
    }
    const std::optional<SplitSums> sums = take(0);
    ASSERT_TRUE(sums.has_value());
    EXPECT_EQ(sums->tokens, expected.tokens);
    EXPECT_EQ(sums->peak, expected.peak);
    EXPECT_EQ(sums->peak_static, expected.peak_static);
    EXPECT_EQ(sums->peak_without_eplb, expected.peak_without_eplb);
    EXPECT_EQ(take(1)->tokens, 0) << "no batch of this layer";
    world.Switch();
  }
  for (const bool is_refused : {true, false}) {
    for (const bool refuses : {false, is_refused}) {
      world.DrawBatch(refuses);
      RunBatch(world, 0);
    }
    EXPECT_EQ(take(0).has_value(), !is_refused) << "one of the two batches drew its slots";
  }
}

TEST_F(SplitLoopGpuTest, TakesTheSumsOfTheSplitsOfAStep) {
  ExpectTheSumsOfTheCpu(/*split_on_gpu=*/false);
  ExpectTheSumsOfTheCpu(/*split_on_gpu=*/true);
}

TEST_F(SplitLoopGpuTest, TakesNoSumsOfAStepWithALateBatch) {
  Random random(57);
  NewWorld();
  SplitLoopWorld world(random, 4, absl::Seconds(60));
  world.DrawBatch();
  RunBatch(world, 0);
  world.loop().Stop();
  RunBatch(world, 0);
  EXPECT_FALSE(world.loop().TakeSums(0, world.placement()).has_value());
  EXPECT_TRUE(world.loop().TakeSums(0, world.placement()).has_value()) << "the next step";
}

TEST_F(SplitLoopGpuTest, TakesTheSumsOfAKernelUnderItsPlacementAlone) {
  Random random(59);
  NewWorld();
  SplitLoopWorld world(random, 4, absl::Seconds(60), /*split_on_gpu=*/true);
  world.DrawBatch();
  RunBatch(world, 0);
  ASSERT_TRUE(world.SetOptionsBeforeTheStream({.slack = .3}).ok());
  EXPECT_TRUE(world.loop().TakeSums(0, world.placement()).has_value())
      << "options of later batches";
  RunBatch(world, 0);
  world.Switch();
  EXPECT_FALSE(world.loop().TakeSums(0, world.placement()).has_value());
}

#ifdef EPLB_FAKE_CUDA
TEST_F(SplitLoopGpuTest, TakesNoSumsOfABatchThatTheStreamHasNotReached) {
  for (const bool split_on_gpu : {false, true}) {
    Random random(60);
    SplitLoopWorld world(random, 4, absl::Seconds(60), split_on_gpu);
    const auto take = [&] { return world.loop().TakeSums(0, world.placement()); };
    std::atomic<bool> is_free = false;
    fake_cuda::EnqueueExternal(stream_.get(), [&] { return is_free.load(); });
    world.DrawBatch();
    ASSERT_TRUE(world.Launch(0, stream_.get()).ok());
    EXPECT_FALSE(take().has_value());
    is_free = true;
    Synchronize();
    EXPECT_EQ(take()->tokens, 0) << "not those of the step before";
    RunBatch(world, 0);
    (void)world.SlotsOfTheCpu(0);
    EXPECT_EQ(take()->tokens, world.SumsOfTheCpu(0).tokens);
  }
}
#endif

TEST_F(SplitLoopGpuTest, TakesNoSumsOfMoreBatchesThanAKernelNotes) {
  Random random(58);
  NewWorld();
  SplitLoopWorld world(random, 2, absl::Seconds(60), /*split_on_gpu=*/true);
  world.DrawBatch();
  for (const int64_t more : {0, 1}) {
    for (int64_t i = 0; i < cuda::kNotedBatches + more; ++i) RunBatch(world, 0);
    EXPECT_EQ(world.loop().TakeSums(0, world.placement()).has_value(), more == 0);
  }
}

TEST_F(SplitLoopGpuTest, DrawsWithoutALossIfTheThreadIsStopped) {
  Random random(47);
  SplitLoopWorld world(random, 8, absl::Seconds(60));
  const absl::Time begin = absl::Now();
  world.loop().Stop();
  for (int32_t i = 1; i <= 3; ++i) {
    world.DrawBatch();
    RunBatch(world, 1);
    EXPECT_EQ(world.Slots(), world.DrawnSlots(1));
    EXPECT_EQ(world.NumLost(1), 0);
    EXPECT_EQ(world.loop().figures().late, i);
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(50)) << "a batch waited for the deadline";
}

// The answer of a late batch meets the next one.
TEST_F(SplitLoopGpuTest, EachBatchIsSplitOrDrawsIfTheDeadlineIsShort) {
  constexpr int32_t kBatches = 20;
  Random random(54);
  NewWorld();
  SplitLoopWorld world(random, 8, absl::Microseconds(10));
  int64_t drawn = 0;
  for (int32_t i = 0; i < kBatches; ++i) {
    world.DrawBatch();
    RunBatch(world, 0);
    const std::optional<SplitSums> sums = world.loop().TakeSums(0, world.placement());
    if (world.Slots() == world.SlotsOfTheCpu(0)) {
      ASSERT_TRUE(sums.has_value());
      EXPECT_EQ(sums->tokens, world.SumsOfTheCpu(0).tokens);
      continue;
    }
    ASSERT_EQ(world.Slots(), world.DrawnSlots(0)) << "batch " << i;
    EXPECT_FALSE(sums.has_value());
    ++drawn;
  }
  EXPECT_EQ(world.loop().figures().late, drawn);
}

TEST_F(SplitLoopGpuTest, ABatchThatASwitchOvertakesOnItsStreamDraws) {
  Random random(55);
  NewWorld();
  SplitLoopWorld world(random, 8, absl::Seconds(60));
  world.DrawBatch();
  RunBatch(world, 0);
  EXPECT_EQ(world.Slots(), world.SlotsOfTheCpu(0));
  const Placement next = RandomPlacement(random, world.placement().topology());
  world.ShowBeforeTheStream(next);
  RunBatch(world, 0);
  EXPECT_EQ(world.Slots(), world.DrawnSlots(0));
  EXPECT_EQ(world.loop().figures().refused, 1);
  EXPECT_EQ(world.loop().figures().newest.version, 0);
  world.SwitchTo(next);
  RunBatch(world, 0);
  EXPECT_EQ(world.Slots(), world.SlotsOfTheCpu(0));
  EXPECT_EQ(world.loop().figures().refused, 1);
}

void SplitLoopGpuTest::ExpectDrawsIfRefused(bool split_on_gpu) {
  Random random(48);
  NewWorld();
  SplitLoopWorld world(random, 8, absl::Seconds(60), split_on_gpu);
  world.DrawBatch();
  RunBatch(world, 0);
  EXPECT_EQ(world.Slots(), world.SlotsOfTheCpu(0));
  world.DrawBatch(/*is_refused=*/true);
  RunBatch(world, 0);
  EXPECT_EQ(world.Slots(), world.DrawnSlots(0)) << "not the quotas of the batch before";
  const std::vector<int32_t> drawn = world.Slots();
  EXPECT_EQ(world.NumLost(0), 0);
  EXPECT_EQ(world.loop().figures().refused, 1);
  world.DrawBatch();
  RunBatch(world, 0);
  EXPECT_EQ(world.Slots(), world.SlotsOfTheCpu(0)) << "the next batch";
  const SplitLoopFigures figures = world.loop().figures();
  EXPECT_EQ(figures.batches, 3);
  EXPECT_EQ(figures.refused, 1);
  EXPECT_EQ(figures.late, 0);
  EXPECT_EQ(figures.drawn, std::ssize(drawn) - std::ranges::count(drawn, cuda::kNoSlot));
}

TEST_F(SplitLoopGpuTest, DrawsWithoutALossIfTheCountsAreRefused) {
  ExpectDrawsIfRefused(/*split_on_gpu=*/false);
  ExpectDrawsIfRefused(/*split_on_gpu=*/true);
}

TEST_F(SplitLoopGpuTest, AKernelDrawsAfterASwitchThatPutsAnExpertOnAnUnusableGpu) {
  Random random(53);
  const TopologyOptions shape{
      .num_layers = kLoopLayers, .num_experts = 2, .num_slots = 4, .num_gpus = 2};
  SplitLoopWorld world(random, shape, absl::Seconds(60), /*split_on_gpu=*/true);
  IndexMatrix slots(kLoopLayers, 4);
  slots << 0, 1, -1, -1, 0, 1, -1, -1;
  world.SwitchTo(*Placement::FromSlots(world.placement().topology(), slots));
  ASSERT_TRUE(world.SetOptions({.gpu_speeds = {1, 0}}).ok());
  world.DrawBatch();
  RunBatch(world, 0);
  EXPECT_EQ(world.Slots(), world.SlotsOfTheCpu(0));
  ::testing::internal::CaptureStderr();
  world.Switch();
  world.loop().LogRefusal();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::MatchesRegex("eplb: route_from draws the slots of layer [01], because it "
                                      "cannot be split: [^\n]+\n"));
  ::testing::internal::CaptureStderr();
  for (int32_t i = 0; i < 2; ++i) {
    world.DrawBatch();
    RunBatch(world, 0);
    EXPECT_EQ(world.Slots(), world.DrawnSlots(0));
    world.loop().LogRefusal();
  }
  EXPECT_EQ(world.loop().figures().refused, 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::MatchesRegex("eplb: route_from draws slots, because the kernel cannot "
                                      "split a batch of layer 0: [^\n]*\n"));
}

#ifdef EPLB_FAKE_CUDA
void SplitLoopGpuTest::ExpectNoAllocationsAndWaits(bool split_on_gpu) {
  Random random(49);
  SplitLoopWorld world(random, 8, absl::Seconds(60), split_on_gpu);
  world.DrawBatch();
  const int64_t allocations = fake_cuda::NumAllocations();
  const int64_t unloaded = fake_cuda::NumUnloadedLaunches();
  const std::vector<std::string> waits = {"cudaStreamSynchronize", "cudaDeviceSynchronize",
                                          "cudaEventSynchronize", "cudaMemcpy"};
  std::vector<int64_t> before;
  for (const std::string& wait : waits) before.push_back(fake_cuda::NumCalls(wait));
  for (int32_t i = 0; i < 100; ++i) {
    const absl::Status launched = world.Launch(i % kLoopLayers, stream_.get());
    ASSERT_TRUE(launched.ok()) << launched;
  }
  for (size_t i = 0; i < waits.size(); ++i) {
    EXPECT_EQ(fake_cuda::NumCalls(waits[i]), before[i]) << waits[i];
  }
  EXPECT_EQ(fake_cuda::NumAllocations(), allocations);
  EXPECT_EQ(fake_cuda::NumUnloadedLaunches(), unloaded);
  Synchronize();
  EXPECT_EQ(world.Slots(), world.SlotsOfTheCpu(1));
  EXPECT_EQ(world.loop().figures().batches, 100);
}

TEST_F(SplitLoopGpuTest, AllocatesAndWaitsForNothingAfterItWasPrepared) {
  ExpectNoAllocationsAndWaits(/*split_on_gpu=*/false);
  ExpectNoAllocationsAndWaits(/*split_on_gpu=*/true);
}
#endif

TEST_F(SplitLoopGpuTest, NamesWhatItCannotRoute) {
  Random random(50);
  SplitLoopWorld world(random, 2, absl::Seconds(60));
  SplitLoop& loop = world.loop();
  int64_t word = 0;
  EXPECT_EQ(loop.RouteFrom(0, &word, &word, nullptr).message(),
            "route_from of layer 0 was called before its count_for, which each call needs");
  cuda::CountArgs choices{.expert_ids = &word,
                          .num_tokens = kLoopTokens + 1,
                          .top_k = kLoopTopK,
                          .num_experts = world.placement().topology().num_experts()};
  EXPECT_EQ(loop.CountFor(0, choices, &word, nullptr).message(),
            "choices of 701 tokens x 2, the split was prepared for at most 700 x 2");
  EXPECT_EQ(loop.CountFor(kLoopLayers, choices, &word, nullptr).message(),
            "layer is 2, expected 0..1");
}

TEST_F(SplitLoopGpuTest, RefusesAShapeThatAKernelWouldRefuse) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 2048, .num_slots = 4096, .num_gpus = 8});
  BatchSplits splits(std::make_shared<const Placement>(Placement::Static(topology)), 0);
  const auto queue = *cuda::MakeStreamRowQueue({});
  const auto loop = SplitLoop::Make({.max_tokens = 1, .top_k = 1}, {.topology = topology,
                                                                    .self = GpuId{0},
                                                                    .device = 0,
                                                                    .tables = {},
                                                                    .splits = splits,
                                                                    .queue = *queue});
  EXPECT_EQ(loop.status().message(),
            "count_for and route_from of 2048 experts in 4096 slots on a GPU, whose tables exceed "
            "the shared memory of 49152 bytes");
}

TEST(CheckSplitOnGpuTest, NamesTheNumberThatTheKernelDoesNotSplit) {
  const auto check = [](int32_t num_gpus, int64_t most_choices) {
    const Topology topology = *Topology::Make(
        {.num_layers = 1, .num_experts = 8, .num_slots = num_gpus, .num_gpus = num_gpus});
    return CheckSplitOnGpu(topology, most_choices);
  };
  EXPECT_TRUE(check(128, 16'777'216).ok());
  EXPECT_EQ(check(129, 1).message(),
            "split over 129 GPUs by the kernel, expected 1..128; BatchSplitter splits over more on "
            "the CPU");
  EXPECT_EQ(check(8, 16'777'217).message(),
            "batches of up to 16777217 choices of 8 ranks, the kernel splits at most 16777216");
}

}  // namespace
}  // namespace eplb
