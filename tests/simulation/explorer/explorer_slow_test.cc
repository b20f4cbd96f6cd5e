// Larger joint explorations, minutes each: ctest -L slow.
#include <gtest/gtest.h>

#include "tests/simulation/explorer/explorer_runs.h"

namespace eplb::explorer {
namespace {

TEST_P(ExplorerTest, NothingIsWrongInAnyState) { ExpectExhaustive(); }

INSTANTIATE_TEST_SUITE_P(
    Slow, ExplorerTest,
    ::testing::Values(ExplorerRun{
        "LaunchCrash",
        {.retracts = 0, .launches = 1, .crashes = 1, .unknown = 0, .faults = 0},
        3855082,
        0}),
    NameOf);

}  // namespace
}  // namespace eplb::explorer
