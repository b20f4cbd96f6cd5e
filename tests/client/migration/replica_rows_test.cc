#include "client/migration/replica_rows.h"

#include <gtest/gtest.h>

#include "tests/client/migration/host_world.h"
#include "tests/client/migration/peer_world.h"
#include "tests/client/migration/replica_contract.h"

namespace eplb {
namespace {

Transports MakeInprocRows(int32_t world_size, int64_t staging_bytes) {
  return *MakeInprocTransports(world_size, staging_bytes);
}

INSTANTIATE_TEST_SUITE_P(Inproc, ReplicaContractTest, ::testing::Values(&MakeInprocRows));
INSTANTIATE_TEST_SUITE_P(Shared, ReplicaContractTest, ::testing::Values(&MakeSharedMemoryWorld));
INSTANTIATE_TEST_SUITE_P(Tcp, ReplicaContractTest, ::testing::Values(&MakeTcpWorld));
INSTANTIATE_TEST_SUITE_P(Peer, ReplicaContractTest, ::testing::Values(&MakePeerWorld));

}  // namespace
}  // namespace eplb
