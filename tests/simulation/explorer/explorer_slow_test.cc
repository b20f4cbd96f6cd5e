// Larger joint explorations, minutes each: ctest -L slow.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/simulation/explorer/explorer_runs.h"
#include "tests/simulation/explorer/symmetry.h"

namespace eplb::explorer {
namespace {

TEST_P(ExplorerTest, NothingIsWrongInAnyState) { ExpectExhaustive(); }

INSTANTIATE_TEST_SUITE_P(
    Slow, ExplorerTest,
    ::testing::Values(
        ExplorerRun{"FaultCancel", {.cancels = 1, .faults = 1}, 2525679, 6174},
        ExplorerRun{"FaultUnknown", {.unknown = 1, .faults = 1}, 2502955, 0},
        ExplorerRun{"CancelCrashUnknownTransfer",
                    {.cancels = 1, .crashes = 1, .unknown = 1, .transfers = 1},
                    7652480,
                    0},
        ExplorerRun{"RunCrash", {.runs = 1, .crashes = 1}, 746008, 0},
        ExplorerRun{"RunCancel", {.cancels = 1, .runs = 1}, 1359099, 0},
        ExplorerRun{"RunUnknown", {.runs = 1, .unknown = 1}, 3232595, 0},
        ExplorerRun{"RunFault", {.runs = 1, .faults = 1}, 3654575, 0},
        ExplorerRun{"CancelCrashFault", {.cancels = 1, .crashes = 1, .faults = 1}, 18559837, 30566},
        ExplorerRun{"CancelTwoCuts", {.cancels = 1, .faults = 2, .disorder = false}, 44714080, 0}),
    NameOfRun);

// `explorer mutant=13 ..` prints the way to the state where it shows: QUARANTINE lies deep.
TEST(SlowMutantTest, AMemoryThatIsNotRecalledIsCaught) {
  const Figures figures =
      Explore({.bounds = {.crashes = 1, .losses = 1, .faults = 2, .cuts = false},
               .mutant = Mutant::kMemoryNotRecalled});
  EXPECT_NE(figures.violation.find("a rank carries QUARANTINE"), std::string::npos)
      << figures.violation;
}

TEST(SlowMutantTest, WhatLiesDeepIsCaughtWithEveryRankToldApart) {
  constexpr Bounds kBesideAndUnknown = {.chunks = 1, .beside = 1, .unknown = 1};
  constexpr Bounds kFaultsAndCrash = {.crashes = 1, .faults = 2, .cuts = false};
  for (const auto& [bounds, mutant, violation] :
       {std::tuple(kBesideAndUnknown, Mutant::kReplacedComesBack, "that was replaced owns the job"),
        std::tuple(kFaultsAndCrash, Mutant::kQuarantineNotStored, "QUARANTINE was forgotten")}) {
    const SymmetryFigures figures = CompareWithRanksToldApart(bounds, mutant);
    EXPECT_NE(figures.violation.find(violation), std::string::npos) << figures.violation;
  }
}

}  // namespace
}  // namespace eplb::explorer
