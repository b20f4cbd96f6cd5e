// The contracts over NCCL's groups with streams that move in sixteen adversarial orders.
#include <gtest/gtest.h>

#include "tests/gpu/nccl_stream_world.h"
#include "tests/gpu/seeded_queues.h"

namespace eplb {
namespace {

INSTANTIATE_TEST_SUITE_P(SeededNccl, TransportContractTest,
                         ::testing::ValuesIn(SeededTransports(&MakeSmallPieceStreamWorld)));
INSTANTIATE_TEST_SUITE_P(SeededNccl, ExecutorContractTest,
                         ::testing::ValuesIn(SeededExecutors("Nccl", &MakeSmallPieceStreamWorld)));

}  // namespace
}  // namespace eplb
