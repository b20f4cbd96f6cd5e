#include "client/migration/nccl_path.h"

#include <gtest/gtest.h>

#include "tests/client/migration/nccl_world.h"

namespace eplb {
namespace {

INSTANTIATE_TEST_SUITE_P(NcclSmallPieces, TransportContractTest,
                         ::testing::Values(&MakeSmallPieceNcclWorld));
INSTANTIATE_TEST_SUITE_P(NcclLargePieces, TransportContractTest,
                         ::testing::Values(&MakeLargePieceNcclWorld));

}  // namespace
}  // namespace eplb
