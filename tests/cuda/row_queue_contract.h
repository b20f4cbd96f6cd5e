// The contract of every RowQueue. The claims are in row_queue_contract.cc and run against each kind
// that instantiates the suite.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/row_queue.h"

namespace eplb::cuda {

// FailedPrecondition where there is no device: the tests skip.
using MakeRowQueue = absl::StatusOr<std::unique_ptr<RowQueue>> (*)();

class RowQueueContractTest : public ::testing::TestWithParam<MakeRowQueue> {
 protected:
  void SetUp() override;

  RowQueue& queue() { return *queue_; }

  // Memory of the queue's device with these bytes.
  RowBuffer Put(std::span<const std::byte> bytes);
  // The bytes of the queue's device at an address, once all that was added has ended.
  std::vector<std::byte> Get(const std::byte* address, size_t num_bytes);
  // Polls until a batch has ended, a minute at most.
  void WaitFor(int64_t batch);
  // A batch that must be accepted.
  int64_t MustCopy(std::span<const RowCopy> rows);

 private:
  std::unique_ptr<RowQueue> queue_;
};

}  // namespace eplb::cuda
