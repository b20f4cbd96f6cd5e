// The contracts with streams that move in sixteen adversarial orders: what is not waited for comes
// at the wrong time in one of them.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/migration/executor_contract.h"
#include "tests/gpu/arena_world.h"
#include "tests/gpu/device_queue.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb {
namespace {

constexpr int kSeeds = 16;

// Suites take their queues from it before a test begins.
template <int kSeed>
std::unique_ptr<cuda::RowQueue> MakeSeededQueue() {
  fake_cuda::SetSeed(kSeed);
  return testing::MakeDeviceQueue();
}

template <int... kSeed>
std::vector<MakeQueue> SeededQueues(std::integer_sequence<int, kSeed...>) {
  return {&MakeSeededQueue<kSeed + 1>...};
}

Transports MakeSeededArenaWorld(int32_t world_size, int64_t staging_bytes) {
  return testing::MakeArenaWorld(world_size, staging_bytes);
}
std::vector<TransportKind> SeededTransports(MakeTransports make) {
  std::vector<TransportKind> kinds;
  for (const MakeQueue queue : SeededQueues(std::make_integer_sequence<int, kSeeds>())) {
    kinds.emplace_back(make, queue);
  }
  return kinds;
}

std::vector<ExecutorKind> SeededExecutors() {
  std::vector<ExecutorKind> kinds;
  for (const MakeQueue queue : SeededQueues(std::make_integer_sequence<int, kSeeds>())) {
    kinds.push_back({"Peer", MakeSeededArenaWorld, StateResidency::kEveryReplica, queue});
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(SeededPeer, TransportContractTest,
                         ::testing::ValuesIn(SeededTransports(&MakeSeededArenaWorld)));
INSTANTIATE_TEST_SUITE_P(Seeded, ExecutorContractTest, ::testing::ValuesIn(SeededExecutors()));

}  // namespace
}  // namespace eplb
