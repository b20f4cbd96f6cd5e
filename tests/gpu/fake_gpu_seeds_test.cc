// The contracts with streams that move in sixteen adversarial orders: what is not waited for comes
// at the wrong time in one of them.
#include <gtest/gtest.h>

#include "tests/gpu/arena_world.h"
#include "tests/gpu/seeded_queues.h"

namespace eplb {
namespace {

Transports MakeSeededArenaWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeArenaWorld(world_size, staging_bytes);
}

INSTANTIATE_TEST_SUITE_P(SeededPeer, TransportContractTest,
                         ::testing::ValuesIn(SeededTransports(&MakeSeededArenaWorld)));
INSTANTIATE_TEST_SUITE_P(Seeded, ExecutorContractTest,
                         ::testing::ValuesIn(SeededExecutors("Peer", &MakeSeededArenaWorld)));

}  // namespace
}  // namespace eplb
