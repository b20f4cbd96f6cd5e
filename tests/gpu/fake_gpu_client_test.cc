// A Client whose experts lie on a GPU: what it takes of the GPU it takes at registration. On the
// stand-in, which counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/tokens.h"
#include "tests/client/rows/queue_memory.h"
#include "tests/client/test_job.h"
#include "tests/cuda/on_device.h"
#include "tests/gpu/device_queue.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb {
namespace {

using cuda::testing::OnDevice;

constexpr int32_t kGpuSplitSlots = 6;

// Arrays of a rank on its GPU.
struct SplitArrays {
  std::vector<int32_t> host_ids;
  OnDevice<int32_t> ids = OnDevice<int32_t>(host_ids);
  OnDevice<int64_t> row = OnDevice<int64_t>(std::vector<int64_t>(4));
  OnDevice<int64_t> gathered = OnDevice<int64_t>(std::vector<int64_t>(8));
  OnDevice<int32_t> slots = OnDevice<int32_t>(std::vector<int32_t>(host_ids.size()));

  cuda::CountArgs Choices(const int32_t* of) const {
    return {.expert_ids = of,
            .num_tokens = static_cast<int64_t>(host_ids.size()),
            .top_k = 1,
            .num_experts = 4};
  }
};

class GpuSplitTest : public ::testing::Test {
 protected:
  GpuSplitTest() {
    fake_cuda::SetSeed(0);
    for (auto& of_rank : memory_) of_rank = std::make_unique<QueueMemory>(&MakeDeviceQueue);
    job_ = std::make_unique<StartedJob>(
        "", TestJobHooks{
                .options = [](ClientOptions& options) { options.num_slots = kGpuSplitSlots; },
                .tensors =
                    [&](TestRank& rank, std::vector<ExpertTensorView>& tensors) {
                      for (ExpertTensorView& tensor : tensors) {
                        const auto size = static_cast<size_t>(tensor.row_stride * tensor.num_rows);
                        tensor.base = memory_[static_cast<size_t>(rank.rank())]
                                          ->Put(std::vector<std::byte>(size))
                                          .data();
                      }
                    }});
    for (int32_t rank = 0; rank < kTestRanks; ++rank) {
      arrays_.push_back({.host_ids = {0, 0, 0, 1, 0, rank, 3, 0, 1, 2}});
    }
  }

  const SplitArrays& ArraysOf(int32_t rank) const { return arrays_[static_cast<size_t>(rank)]; }

  // Puts the counts of the rank's EP group on its GPU.
  std::vector<int64_t> Gather(int32_t rank) const {
    std::vector<int64_t> counts(8);
    for (int32_t gpu = 0; gpu < 2; ++gpu) {
      for (const int32_t id : ArraysOf(rank / 2 * 2 + gpu).host_ids) ++counts[4 * gpu + id];
    }
    EXPECT_EQ(cudaMemcpy(ArraysOf(rank).gathered.data(), counts.data(), 64, cudaMemcpyHostToDevice),
              cudaSuccess);
    return counts;
  }

  // Routes a batch of layer 1 on the GPU and on the host.
  void ExpectTheSlotsOfTheHost(int32_t rank, Client& client) {
    const SplitArrays& mine = ArraysOf(rank);
    const std::vector<int64_t> counts = Gather(rank);
    const absl::Status counted = client.CountFor(1, mine.Choices(mine.ids.data()), mine.row.data());
    EXPECT_TRUE(counted.ok()) << counted;
    const absl::Status routed = client.RouteFrom(1, mine.gathered.data(), mine.slots.data());
    EXPECT_TRUE(routed.ok()) << routed;
    const std::vector<int32_t> slots = mine.slots.Read();
    std::vector<int64_t> quotas(kGpuSplitSlots);
    std::vector<int64_t> own(kGpuSplitSlots);
    std::vector<int32_t> expected(slots.size());
    const auto figures = client.Split(1, {.by_gpu = counts}, quotas, own);
    ASSERT_TRUE(figures.ok()) << figures.status();
    ASSERT_TRUE(RouteBySplit(client.placement(), mine.Choices(mine.host_ids.data()),
                             {.layer = 1, .own = own, .slots = expected.data()})
                    .ok());
    EXPECT_EQ(slots, expected);
    EXPECT_EQ(client.split_figures().newest.peak, figures->peak);
    EXPECT_EQ(client.split_figures().newest.equal_peak, figures->equal_peak);
  }

  std::array<std::unique_ptr<QueueMemory>, kTestRanks> memory_;
  std::unique_ptr<StartedJob> job_;
  std::vector<SplitArrays> arrays_;
};

TEST_F(GpuSplitTest, SplitsInTheOrderOfAStreamWithTheBitsOfTheHost) {
  job_->Run([&](int32_t r, TestRank& rank) {
    const SplitArrays& mine = ArraysOf(r);
    const absl::Status early = rank.client().CountFor(1, mine.Choices(nullptr), nullptr);
    EXPECT_EQ(early.message(), "count_for was called before prepare_split");
    const absl::Status prepared =
        rank.client().PrepareSplit({.max_tokens = 16, .top_k = 1, .deadline = absl::Seconds(10)});
    EXPECT_TRUE(prepared.ok()) << prepared;
    const absl::Status on_host =
        rank.client().CountFor(1, mine.Choices(mine.host_ids.data()), mine.row.data());
    EXPECT_EQ(on_host.message(),
              "choices.expert_ids is in host memory, expected memory of device 0, where the "
              "tables are");
    const absl::Status counted =
        rank.client().CountFor(1, mine.Choices(mine.ids.data()), mine.row.data());
    EXPECT_TRUE(counted.ok()) << counted;
    const std::vector<int64_t> counts = Gather(r);
    EXPECT_THAT(mine.row.Read(),
                ::testing::ElementsAreArray(counts.data() + (r % 2 == 0 ? 0 : 4), size_t{4}));
    ExpectTheSlotsOfTheHost(r, rank.client());
    EXPECT_EQ(rank.client().split_figures().batches, 1);
    EXPECT_EQ(rank.client().split_figures().drawn, 0);
  });
  job_->Run([&](int32_t r, TestRank& rank) {
    const SplitArrays& mine = ArraysOf(r);
    const absl::Status prepared =
        rank.client().PrepareSplit({.max_tokens = 16, .top_k = 1, .deadline = absl::Seconds(60)});
    EXPECT_TRUE(prepared.ok()) << prepared;
    EXPECT_TRUE(rank.client().CountFor(1, mine.Choices(mine.ids.data()), mine.row.data()).ok());
    rank.client().Close("finished");
    EXPECT_TRUE(rank.client().RouteFrom(1, mine.gathered.data(), mine.slots.data()).ok());
    for (const int32_t slot : mine.slots.Read()) EXPECT_THAT(slot, ::testing::Ge(0));
    EXPECT_EQ(rank.client().split_figures().late, 1) << "Close ended the thread";
  });
}

// The ranks take turns, because the stand-in counts the calls of all threads.
TEST_F(GpuSplitTest, TheCallsOfAClientAllocateNothingAndWaitForNothing) {
  std::mutex turn;
  job_->Run([&](int32_t r, TestRank& rank) {
    Client& client = rank.client();
    const SplitArrays& mine = ArraysOf(r);
    const std::scoped_lock alone(turn);
    const std::vector<std::string> calls = {"cudaStreamSynchronize", "cudaDeviceSynchronize",
                                            "cudaEventSynchronize", "cudaMemcpy",
                                            "cudaPointerGetAttributes"};
    for (const bool split_on_gpu : {false, true}) {
      SCOPED_TRACE(split_on_gpu);
      const absl::Status prepared = client.PrepareSplit({.max_tokens = 16,
                                                         .top_k = 1,
                                                         .deadline = absl::Seconds(60),
                                                         .split_on_gpu = split_on_gpu});
      ASSERT_TRUE(prepared.ok()) << prepared;
      ExpectTheSlotsOfTheHost(r, client);
      std::vector<int64_t> before;
      for (const std::string& call : calls) before.push_back(fake_cuda::NumCalls(call));
      const int64_t allocations = fake_cuda::NumAllocations();
      for (int i = 0; i < 10; ++i) {
        EXPECT_TRUE(client.CountFor(1, mine.Choices(mine.ids.data()), mine.row.data()).ok());
        EXPECT_TRUE(client.RouteFrom(1, mine.gathered.data(), mine.slots.data()).ok());
      }
      EXPECT_EQ(fake_cuda::NumAllocations(), allocations);
      for (size_t i = 0; i < calls.size(); ++i) {
        EXPECT_EQ(fake_cuda::NumCalls(calls[i]), before[i]) << calls[i];
      }
    }
  });
}

TEST_F(GpuSplitTest, AKernelSplitsByThePlacementAndTheOptionsInUse) {
  job_->Run([&](int32_t r, TestRank& rank) {
    Client& client = rank.client();
    const SplitArrays& mine = ArraysOf(r);
    const absl::Status prepared =
        client.PrepareSplit({.max_tokens = 16, .top_k = 1, .split_on_gpu = true});
    ASSERT_TRUE(prepared.ok()) << prepared;
    ExpectTheSlotsOfTheHost(r, client);
    ASSERT_TRUE(client.SetSplitOptions({.gpu_speeds = {1, .5}}).ok());
    const auto ended = rank.Step(0);
    ASSERT_TRUE(ended.ok()) << ended.status();
    ExpectTheSlotsOfTheHost(r, client);
    // Each placement of the check is one that kernels read.
    int moves = 0;
    const absl::Status checked =
        client.CheckExperts([&](int32_t layer, int32_t local_slot) -> absl::StatusOr<uint64_t> {
          const PlacementView& placement = client.placement();
          if (layer == 1 && local_slot == 0) {
            ExpectTheSlotsOfTheHost(r, client);
            ++moves;
          }
          const auto slots = placement.physical_to_logical_map.subspan(
              static_cast<size_t>(layer) * static_cast<size_t>(placement.num_slots));
          return slots[static_cast<size_t>(placement.first_local_slot + local_slot)];
        });
    EXPECT_TRUE(checked.ok()) << checked;
    EXPECT_EQ(moves, 3);
    ExpectTheSlotsOfTheHost(r, client);
    const int32_t* freed = mine.ids.data();
    if (r == 0) {
      const OnDevice<int32_t> ids(mine.host_ids);
      freed = ids.data();
      EXPECT_TRUE(client.CountFor(0, mine.Choices(freed), mine.row.data()).ok());
      (void)mine.row.Read();
    }
    EXPECT_TRUE(rank.Step(1).ok());
    const absl::Status counted = client.CountFor(0, mine.Choices(freed), mine.row.data());
    EXPECT_EQ(counted.ok(), r != 0) << "a boundary forgets which memory an address was of";
    EXPECT_TRUE(client.CountFor(1, mine.Choices(mine.ids.data()), mine.row.data()).ok());
    client.Close("finished");
    EXPECT_TRUE(client.RouteFrom(1, mine.gathered.data(), mine.slots.data()).ok());
    (void)mine.slots.Read();  // waits for the batch
    EXPECT_EQ(client.split_figures().batches, 7);
    EXPECT_EQ(client.split_figures().late + client.split_figures().refused, 0);
  });
}

TEST(GpuClientTest, TurnsChoicesByATableOfTheCaller) {
  fake_cuda::SetSeed(0);
  const OnDevice<int32_t> ids(std::vector<int32_t>{0, 2, -1, 1, 2});
  const OnDevice<int64_t> table(std::vector<int64_t>{5, 4, 3, -1});
  const OnDevice<int64_t> counters(std::vector<int64_t>(4));
  cuda::TurnArgs turn{.choices = {.expert_ids = ids.data(),
                                  .num_tokens = 5,
                                  .top_k = 1,
                                  .num_experts = 3,
                                  .counts = counters.data(),
                                  .out_of_range = counters.data() + 3},
                      .slot_of_expert = table.data(),
                      .slots = ids.data()};
  cuda::TurnArgs none = turn;
  none.choices.num_tokens = 0;
  const absl::Status loaded = TurnTokensOnGpu(none, 0, nullptr);
  EXPECT_TRUE(loaded.ok()) << loaded;
  const int64_t unloaded_launches = fake_cuda::NumUnloadedLaunches();
  const absl::Status turned = TurnTokensOnGpu(turn, 0, nullptr);
  EXPECT_TRUE(turned.ok()) << turned;
  EXPECT_EQ(fake_cuda::NumUnloadedLaunches(), unloaded_launches);
  EXPECT_THAT(ids.Read(), ::testing::ElementsAre(5, 3, -1, 4, 3));
  EXPECT_THAT(counters.Read(), ::testing::ElementsAre(1, 1, 2, 1));
  turn.slots = nullptr;
  EXPECT_EQ(TurnTokensOnGpu(turn, 0, nullptr).message(), "slots is NULL");
  turn.slots = ids.data();
  EXPECT_FALSE(TurnTokensOnGpu(turn, fake_cuda::kDevices, nullptr).ok());
}

TEST(GpuClientTest, SumsOfSquaresTakeNoMemoryBetweenSteps) {
  fake_cuda::SetSeed(0);
  std::array<std::unique_ptr<QueueMemory>, kTestRanks> memory;
  for (auto& of_rank : memory) of_rank = std::make_unique<QueueMemory>(&MakeDeviceQueue);
  std::array<std::vector<ReplicaRows>, kTestRanks> rows;
  {
    StartedJob job("", {.options = [](ClientOptions& options) { options.transport = "peer"; },
                        .tensors =
                            [&](TestRank& rank, std::vector<ExpertTensorView>& tensors) {
                              const auto i = static_cast<size_t>(rank.rank());
                              for (ExpertTensorView& tensor : tensors) {
                                const auto size =
                                    static_cast<size_t>(tensor.row_stride * tensor.num_rows);
                                tensor.base = memory[i]->Put(std::vector<std::byte>(size)).data();
                                rows[i].push_back({.name = absl::StrCat("sum of ", tensor.name),
                                                   .layer = tensor.layer,
                                                   .base = tensor.base,
                                                   .num_rows = tensor.num_rows,
                                                   .row_bytes = 8,
                                                   .row_stride = tensor.row_stride});
                              }
                            }});
    const int64_t allocations = fake_cuda::NumAllocations();
    job.Run([&](int32_t r, TestRank& rank) {
      EXPECT_EQ(rank.client().transport(), "peer");
      for (int32_t step = 0; step < 2; ++step) {
        const auto squares = rank.client().ExpertSquares(rows[static_cast<size_t>(r)]);
        EXPECT_TRUE(squares.ok()) << squares.status();
        EXPECT_TRUE(rank.Step(step).ok());
      }
    });
    EXPECT_EQ(fake_cuda::NumAllocations(), allocations);
  }
}

}  // namespace
}  // namespace eplb
