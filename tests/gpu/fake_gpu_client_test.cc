// A Client whose experts lie on a GPU: what it takes of the GPU it takes at registration. On the
// stand-in, which counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
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

TEST(GpuClientTest, SplitsInTheOrderOfAStreamWithTheBitsOfTheHost) {
  fake_cuda::SetSeed(0);
  std::array<std::unique_ptr<QueueMemory>, kTestRanks> memory;
  for (auto& of_rank : memory) of_rank = std::make_unique<QueueMemory>(&MakeDeviceQueue);
  StartedJob job("", {.options = [](ClientOptions& options) { options.num_slots = kGpuSplitSlots; },
                      .tensors =
                          [&](TestRank& rank, std::vector<ExpertTensorView>& tensors) {
                            for (ExpertTensorView& tensor : tensors) {
                              const auto size =
                                  static_cast<size_t>(tensor.row_stride * tensor.num_rows);
                              tensor.base = memory[static_cast<size_t>(rank.rank())]
                                                ->Put(std::vector<std::byte>(size))
                                                .data();
                            }
                          }});
  std::vector<SplitArrays> arrays;
  std::vector<std::vector<int64_t>> rows(kTestRanks);
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    arrays.push_back({.host_ids = {0, 0, 0, 1, 0, rank, 3, 0, 1, 2}});
  }
  job.Run([&](int32_t r, TestRank& rank) {
    const SplitArrays& mine = arrays[static_cast<size_t>(r)];
    const absl::Status early = rank.client().CountFor(1, mine.Choices(nullptr), nullptr);
    EXPECT_EQ(early.message(), "count_for was called before prepare_split");
    const absl::Status prepared =
        rank.client().PrepareSplit({.max_tokens = 16, .top_k = 1, .deadline = absl::Seconds(10)});
    EXPECT_TRUE(prepared.ok()) << prepared;
    const absl::Status on_host =
        rank.client().CountFor(1, mine.Choices(mine.host_ids.data()), mine.row.data());
    EXPECT_EQ(on_host.message(),
              "choices.expert_ids lies in host memory, expected memory of device 0, where the "
              "tables are");
    const absl::Status counted =
        rank.client().CountFor(1, mine.Choices(mine.ids.data()), mine.row.data());
    EXPECT_TRUE(counted.ok()) << counted;
    rows[static_cast<size_t>(r)] = mine.row.Read();
  });
  job.Run([&](int32_t r, TestRank& rank) {
    Client& client = rank.client();
    const SplitArrays& mine = arrays[static_cast<size_t>(r)];
    std::vector<int64_t> counts = rows[static_cast<size_t>(r / 2 * 2)];
    const std::vector<int64_t>& second = rows[static_cast<size_t>(r / 2 * 2 + 1)];
    counts.insert(counts.end(), second.begin(), second.end());
    EXPECT_EQ(cudaMemcpy(mine.gathered.data(), counts.data(), 64, cudaMemcpyHostToDevice),
              cudaSuccess);
    const int64_t allocations = fake_cuda::NumAllocations();
    const absl::Status routed = client.RouteFrom(1, mine.gathered.data(), mine.slots.data());
    EXPECT_TRUE(routed.ok()) << routed;
    EXPECT_EQ(fake_cuda::NumAllocations(), allocations);
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
    EXPECT_EQ(client.split_figures().batches, 1);
    EXPECT_EQ(client.split_figures().newest.peak, figures->peak);
    EXPECT_EQ(client.split_figures().newest.equal_peak, figures->equal_peak);
  });
  job.Run([&](int32_t r, TestRank& rank) {
    const SplitArrays& mine = arrays[static_cast<size_t>(r)];
    const absl::Status prepared = rank.client().PrepareSplit(
        {.max_tokens = 16, .top_k = 1, .deadline = absl::Milliseconds(2)});
    EXPECT_TRUE(prepared.ok()) << prepared;
    EXPECT_TRUE(rank.client().CountFor(1, mine.Choices(mine.ids.data()), mine.row.data()).ok());
    rank.client().Close("finished");
    EXPECT_TRUE(rank.client().RouteFrom(1, mine.gathered.data(), mine.slots.data()).ok());
    for (const int32_t slot : mine.slots.Read()) EXPECT_THAT(slot, ::testing::Ge(0));
    EXPECT_EQ(rank.client().split_figures().late, 1) << "Close ended the thread";
  });
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
