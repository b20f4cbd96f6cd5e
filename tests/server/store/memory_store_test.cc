#include "tests/server/store/store_contract.h"

namespace eplb {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, StoreContractTest, ::testing::Values(StoreContract{[] {
                           return MakeMemoryStore(kContractLimits);
                         }}));

}  // namespace
}  // namespace eplb
