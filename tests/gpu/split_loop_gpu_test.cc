// The loop of a split in the order of a stream: counts, the ranks' rows together, slots. Bits are
// those of the CPU, one captured graph serves all placements, and no choice is lost without a
// split.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "client/split_loop.h"
#include "cuda/kernels/route_body.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"
#include "tests/placement/random_placement.h"
#ifdef EPLB_FAKE_CUDA
#include "tests/support/fake_cuda/fake_cuda.h"
#endif

namespace eplb {
namespace {

using cuda::testing::OnDevice;

constexpr int32_t kLoopLayers = 2;
constexpr int32_t kLoopTopK = 2;
constexpr int64_t kLoopTokens = 700;  // two chunks of choices

// One rank of an EP group; the counts of the others are drawn.
class SplitLoopWorld {
 public:
  SplitLoopWorld(Random& random, int32_t num_gpus, absl::Duration deadline,
                 bool split_on_gpu = false)
      : SplitLoopWorld(random, Shape(random, num_gpus), deadline, split_on_gpu) {}
  SplitLoopWorld(Random& random, const TopologyOptions& shape, absl::Duration deadline,
                 bool split_on_gpu)
      : random_(random),
        topology_(*Topology::Make(shape)),
        self_{Pick(random, 0, shape.num_gpus - 1)},
        placement_(std::make_shared<const Placement>(RandomPlacement(random, topology_))),
        splits_(placement_, 0),
        replicas_(std::vector<int32_t>(kLoopLayers * S())),
        first_replica_(std::vector<int32_t>(kLoopLayers * (E() + 1))),
        numbers_(std::vector<int32_t>(kLoopLayers)),
        ids_(std::vector<int32_t>(kLoopTokens * kLoopTopK)),
        row_(std::vector<int64_t>(E())),
        gathered_(std::vector<int64_t>(E() * static_cast<size_t>(shape.num_gpus))),
        slots_(std::vector<int32_t>(kLoopTokens * kLoopTopK)),
        tables_{.num_layers = kLoopLayers,
                .num_experts = topology_.num_experts(),
                .num_slots = topology_.num_slots(),
                .replicas = replicas_.data(),
                .first_replica = first_replica_.data()},
        queue_(*cuda::MakeStreamRowQueue({})) {
    WriteTables();
    auto loop = SplitLoop::Make({.max_tokens = kLoopTokens,
                                 .top_k = kLoopTopK,
                                 .deadline = deadline,
                                 .split_on_gpu = split_on_gpu},
                                {.topology = topology_,
                                 .self = self_,
                                 .device = 0,
                                 .tables = tables_,
                                 .table_numbers = numbers_.data(),
                                 .newest_numbers = newest_numbers_.data(),
                                 .splits = splits_,
                                 .queue = *queue_});
    EXPECT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }

  SplitLoop& loop() { return *loop_; }
  const Placement& placement() const { return *placement_; }

  // The tables are written in place, as a switch does it in the order of a stream.
  void Switch() { SwitchTo(RandomPlacement(random_, topology_)); }
  void SwitchTo(const Placement& placement) {
    placement_ = std::make_shared<const Placement>(placement);
    constexpr LayerId kAll[kLoopLayers] = {LayerId{0}, LayerId{1}};
    if (loop_->gpu_tables() != nullptr) {
      EXPECT_TRUE(loop_->gpu_tables()->Update(*placement_, kAll, /*stream=*/nullptr).ok());
    }
    ShowBeforeTheStream(placement);
    WriteTables();
  }
  // The part of a switch that does not wait for the stream.
  void ShowBeforeTheStream(const Placement& placement) {
    for (int32_t& number : newest_numbers_) __atomic_add_fetch(&number, 1, __ATOMIC_RELEASE);
    splits_.Show(std::make_shared<const Placement>(placement), ++version_);
  }
  absl::Status SetOptions(const SplitOptions& options) {
    EPLB_RETURN_IF_ERROR(splits_.SetOptions(options));
    options_ = options;
    return loop_->gpu_tables()->Renew(/*stream=*/nullptr);
  }

  // Draws a batch; is_refused: with a count that no split takes.
  void DrawBatch(bool is_refused = false) {
    host_ids_.clear();
    for (int64_t i = 0; i < num_tokens_ * kLoopTopK; ++i) {
      // Lower experts are chosen more often; one choice in twenty is none.
      const int32_t last = topology_.num_experts() - 1;
      const int32_t chosen = std::min(Pick(random_, 0, last), Pick(random_, 0, last));
      host_ids_.push_back(Pick(random_, 0, 19) == 0 ? -1 : chosen);
    }
    counts_.assign(E() * static_cast<size_t>(topology_.num_gpus()), 0);
    for (int64_t& count : counts_) count = Pick(random_, 0, 3) == 0 ? 0 : Pick(random_, 0, 99);
    auto* const mine = &counts_[static_cast<size_t>(self_.value) * E()];
    if (is_refused) counts_[self_.value == 0 ? E() : 0] = -1;
    std::fill_n(mine, E(), 0);
    for (const int32_t id : host_ids_) {
      if (id >= 0) ++mine[id];
    }
    Write(ids_, host_ids_);
    std::vector<int64_t> others = counts_;  // this rank's row comes from its GPU
    std::fill_n(&others[static_cast<size_t>(self_.value) * E()], E(), -7);
    Write(gathered_, others);
  }

  void SetTokens(int64_t num_tokens) { num_tokens_ = num_tokens; }

  // Puts a batch on the stream.
  absl::Status Launch(int32_t layer, cudaStream_t stream) {
    absl::Status status = loop_->CountFor(layer,
                                          {.expert_ids = ids_.data(),
                                           .num_tokens = num_tokens_,
                                           .top_k = kLoopTopK,
                                           .num_experts = topology_.num_experts()},
                                          row_.data(), stream);
    status.Update(cuda::ToStatus(
        cudaMemcpyAsync(gathered_.data() + static_cast<size_t>(self_.value) * E(), row_.data(),
                        E() * sizeof(int64_t), cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync"));
    status.Update(loop_->RouteFrom(layer, gathered_.data(), slots_.data(), stream));
    return status;
  }

  std::vector<int32_t> Slots() const {
    std::vector<int32_t> slots = slots_.Read();
    slots.resize(host_ids_.size());
    return slots;
  }

  // Slots by the calls of the CPU: an expert's choices fill its slots, each up to its own quota.
  std::vector<int32_t> SlotsOfTheCpu(int32_t layer) {
    BatchSplits splits(placement_, version_);
    EXPECT_TRUE(splits.SetOptions(options_).ok());
    std::vector<int64_t> quotas(S());
    std::vector<int64_t> own(S());
    const auto figures = splits.Split(LayerId{layer}, {.by_gpu = counts_},
                                      {.self = self_, .quotas = quotas, .own = own});
    EXPECT_TRUE(figures.ok()) << figures.status();
    figures_ = *figures;
    std::vector<int32_t> slots;
    for (const int32_t id : host_ids_) {
      slots.push_back(cuda::kNoSlot);
      if (id < 0) continue;
      for (const int32_t slot : placement_->ReplicasOf(LayerId{layer}, ExpertId{id})) {
        if (own[static_cast<size_t>(slot)] == 0) continue;
        --own[static_cast<size_t>(slot)];
        slots.back() = slot;
        break;
      }
    }
    return slots;
  }

  // Slots that choices draw, each replica equally likely.
  std::vector<int32_t> DrawnSlots(int32_t layer) const {
    std::vector<int32_t> slots;
    for (size_t i = 0; i < host_ids_.size(); ++i) {
      slots.push_back(cuda::kNoSlot);
      if (host_ids_[i] < 0) continue;
      const auto replicas = placement_->ReplicasOf(LayerId{layer}, ExpertId{host_ids_[i]});
      const int64_t token = self_.value * kLoopTokens + static_cast<int64_t>(i) / kLoopTopK;
      const uint64_t draw = cuda::RouteDraw(cuda::DrawKey(token), host_ids_[i]);
      slots.back() = replicas[static_cast<size_t>(draw * replicas.size() >> 32)];
    }
    return slots;
  }

  // Choices of an expert that went to no slot of it.
  int NumLost(int32_t layer) const {
    const std::vector<int32_t> slots = Slots();
    int lost = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (host_ids_[i] < 0) continue;
      const bool is_slot = slots[i] >= 0 && slots[i] < topology_.num_slots();
      if (!is_slot || placement_->physical_to_logical_map()(layer, slots[i]) != host_ids_[i]) {
        ++lost;
      }
    }
    return lost;
  }

  // Figures of the batch of SlotsOfTheCpu.
  const SplitFigures& figures_of_the_cpu() const { return figures_; }

 private:
  static TopologyOptions Shape(Random& random, int32_t num_gpus) {
    const int32_t experts = Pick(random, 1, 3 * num_gpus);
    const int32_t least = std::max(experts, num_gpus);
    return {.num_layers = kLoopLayers,
            .num_experts = experts,
            .num_slots = Pick(random, least, 2 * least),
            .num_gpus = num_gpus,
            .num_nodes = num_gpus % 4 == 0 ? num_gpus / 4 : 1};
  }
  size_t E() const { return static_cast<size_t>(topology_.num_experts()); }
  size_t S() const { return static_cast<size_t>(topology_.num_slots()); }

  template <class T>
  static void Write(const OnDevice<T>& to, const std::vector<T>& values) {
    EXPECT_EQ(
        cudaMemcpy(to.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
        cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  void WriteTables() {
    std::vector<int32_t> replicas;
    std::vector<int32_t> first_replica;
    for (int32_t layer = 0; layer < kLoopLayers; ++layer) {
      const size_t begin = replicas.size();
      for (int32_t expert = 0; expert < topology_.num_experts(); ++expert) {
        first_replica.push_back(static_cast<int32_t>(replicas.size() - begin));
        const auto slots = placement_->ReplicasOf(LayerId{layer}, ExpertId{expert});
        replicas.insert(replicas.end(), slots.begin(), slots.end());
      }
      first_replica.push_back(static_cast<int32_t>(replicas.size() - begin));
      replicas.resize(begin + S(), cuda::kNoSlot);
    }
    Write(replicas_, replicas);
    Write(first_replica_, first_replica);
    Write(numbers_, newest_numbers_);
  }

  Random& random_;
  const Topology topology_;
  const GpuId self_;
  std::shared_ptr<const Placement> placement_;
  int64_t version_ = 0;
  std::vector<int32_t> newest_numbers_ = std::vector<int32_t>(kLoopLayers);
  BatchSplits splits_;
  OnDevice<int32_t> replicas_, first_replica_, numbers_, ids_;
  OnDevice<int64_t> row_, gathered_;
  OnDevice<int32_t> slots_;
  const DeviceTables tables_;
  int64_t num_tokens_ = kLoopTokens;
  std::vector<int32_t> host_ids_;
  std::vector<int64_t> counts_;  // counts of all ranks
  SplitOptions options_;
  SplitFigures figures_;
  std::unique_ptr<cuda::RowQueue> queue_;
  std::unique_ptr<SplitLoop> loop_;
};

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
    if (world.Slots() == world.SlotsOfTheCpu(0)) continue;
    ASSERT_EQ(world.Slots(), world.DrawnSlots(0)) << "batch " << i;
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
