// A Client whose experts lie on a GPU: what it takes of the GPU it takes at registration. On the
// stand-in, which counts.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/client/rows/queue_memory.h"
#include "tests/client/test_job.h"
#include "tests/gpu/device_queue.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb {
namespace {

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
