#include "tests/server/store/store_contract.h"

namespace eplb {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, StoreContractTest, ::testing::Values(StoreContract{[] {
                           return MakeMemoryStore(kContractMaxEvents);
                         }}));

}  // namespace
}  // namespace eplb
