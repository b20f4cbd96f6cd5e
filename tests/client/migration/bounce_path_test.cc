#include "client/migration/bounce_path.h"

#include <gtest/gtest.h>

#include "tests/client/migration/bounce_world.h"
#include "tests/client/migration/executor_contract.h"

namespace eplb {
namespace {

INSTANTIATE_TEST_SUITE_P(Bounce, TransportContractTest, ::testing::Values(&MakeBounceWorld));
INSTANTIATE_TEST_SUITE_P(Bounce, ExecutorContractTest,
                         ::testing::Values(ExecutorKind{"WithPrimary", MakeBounceWorld,
                                                        StateResidency::kWithPrimary}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace eplb
