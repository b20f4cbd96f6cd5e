// Queues whose device moves its streams in one of sixteen adversarial orders.
#pragma once

#include <memory>
#include <vector>

#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/queue_memory.h"
#include "tests/client/rows/transport_contract.h"
#include "tests/gpu/device_queue.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb {

inline constexpr int kSeeds = 16;

// Suites take their queues from it before a test begins.
template <int kSeed>
std::unique_ptr<cuda::RowQueue> MakeSeededQueue() {
  fake_cuda::SetSeed(kSeed);
  return MakeDeviceQueue();
}

template <int... kSeed>
std::vector<MakeQueue> QueuesOf(std::integer_sequence<int, kSeed...>) {
  return {&MakeSeededQueue<kSeed + 1>...};
}
inline std::vector<MakeQueue> SeededQueues() {
  return QueuesOf(std::make_integer_sequence<int, kSeeds>());
}

inline std::vector<TransportKind> SeededTransports(MakeTransports make) {
  std::vector<TransportKind> kinds;
  for (const MakeQueue queue : SeededQueues()) kinds.emplace_back(make, queue);
  return kinds;
}

inline std::vector<ExecutorKind> SeededExecutors(const char* name, MakeTransports make) {
  std::vector<ExecutorKind> kinds;
  for (const MakeQueue queue : SeededQueues()) {
    kinds.push_back({name, make, StateResidency::kEveryReplica, queue});
  }
  return kinds;
}

}  // namespace eplb
