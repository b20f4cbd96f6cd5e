// Runs with every build. Each run is exhaustive within its bounds, but none has all of the bounds
// at once; explorer_slow_test.cc has larger ones. QUARANTINE is reached only if messages of one
// stream overtake each other or arrive twice, which gRPC does not do.
#include <gtest/gtest.h>

#include <string>

#include "tests/simulation/explorer/explorer_runs.h"
#include "tests/simulation/explorer/symmetry.h"

namespace eplb::explorer {
namespace {

TEST_P(ExplorerTest, NothingIsWrongInAnyState) { ExpectExhaustive(); }

INSTANTIATE_TEST_SUITE_P(
    Ci, ExplorerTest,
    ::testing::Values(
        ExplorerRun{"TwoFaults", {.faults = 2}, 1689807, 11841},
        ExplorerRun{"TwoCuts", {.faults = 2, .disorder = false}, 867905, 0},
        ExplorerRun{"FaultCrash", {.crashes = 1, .faults = 1}, 1810212, 0},
        ExplorerRun{"Run", {.runs = 1}, 96732, 0},
        ExplorerRun{"ReplacedCancel", {.cancels = 1, .replaced = 1}, 73375, 0},
        ExplorerRun{"ReplacedCrash", {.crashes = 1, .replaced = 1}, 132362, 0},
        ExplorerRun{"ReplacedFault", {.faults = 1, .replaced = 1}, 217685, 0},
        ExplorerRun{"Beside", {.chunks = 1, .beside = 1}, 31637, 0},
        ExplorerRun{"BesideCrash", {.chunks = 0, .beside = 1, .crashes = 1}, 21502, 0},
        ExplorerRun{
            "BesideCrashLoss", {.chunks = 0, .beside = 1, .crashes = 1, .losses = 1}, 835744, 0},
        ExplorerRun{"BesideCutGrace",
                    {.chunks = 0, .cancels = 1, .beside = 1, .faults = 1, .disorder = false},
                    8967,
                    0}),
    NameOfRun);

TEST(ExplorerSymmetryTest, TheCoreTreatsRanksAlike) {
  const Figures figures = Explore({.bounds = {.cancels = 1, .crashes = 1}, .check_symmetry = true});
  EXPECT_EQ(figures.violation, "");
  EXPECT_TRUE(figures.complete);
}

// The states that Explore keeps are, one by one, those that remain of all states when ranks are
// told apart first and renamed then.
class RanksToldApartTest : public ::testing::TestWithParam<ExplorerRun> {};

TEST_P(RanksToldApartTest, LeaveTheSameStates) {
  const ExplorerRun& run = GetParam();
  const SymmetryFigures figures = CompareWithRanksToldApart(run.bounds);
  EXPECT_EQ(figures.violation, "");
  EXPECT_EQ(figures.missed, 0u);
  EXPECT_EQ(figures.orbits, figures.kept);
  EXPECT_EQ(figures.kept, run.states);
  EXPECT_GT(figures.told_apart, 4 * figures.kept);
}

INSTANTIATE_TEST_SUITE_P(
    Small, RanksToldApartTest,
    ::testing::Values(ExplorerRun{"NoFault", {}, 2620, 0},
                      ExplorerRun{"Replaced", {.replaced = 1}, 6179, 0},
                      ExplorerRun{"Cancel", {.cancels = 1}, 33644, 0},
                      ExplorerRun{"Crash", {.crashes = 1}, 59124, 0},
                      ExplorerRun{"Unknown", {.unknown = 1}, 84231, 0},
                      ExplorerRun{"Fault", {.faults = 1}, 87148, 0},
                      ExplorerRun{"Run", {.chunks = 1, .runs = 1}, 27484, 0},
                      ExplorerRun{
                          "BesideCrash", {.chunks = 0, .beside = 1, .crashes = 1}, 21502, 0},
                      ExplorerRun{"CrashLoss", {.chunks = 0, .crashes = 1, .losses = 1}, 1369, 0}),
    NameOfRun);

// A bound that has no room in a state, or none for its number, is refused: it would be taken for
// another one.
TEST(ExplorerBoundsTest, WhatAStateCannotHoldIsRefused) {
  for (const Bounds& bounds : {Bounds{.cancels = 2}, Bounds{.chunks = 4}, Bounds{.faults = 4},
                               Bounds{.runs = 2}, Bounds{.losses = 2}}) {
    const Figures figures = Explore({.bounds = bounds, .max_states = 1000});
    EXPECT_EQ(figures.violation, "bounds are at most 3 chunks, 3 faults, and 1 of everything else");
    EXPECT_FALSE(figures.complete);
  }
}

struct MutantRun {
  const char* name;
  Mutant mutant;
  Bounds bounds;  // the least in which it shows
  const char* violation;
};

void PrintTo(const MutantRun& run, std::ostream* out) { *out << run.name; }

class MutantTest : public ::testing::TestWithParam<MutantRun> {};

// `explorer mutant=N ..` prints the way to the state where it shows.
TEST_P(MutantTest, IsCaught) {
  const MutantRun& run = GetParam();
  const Figures figures = Explore({.bounds = run.bounds, .mutant = run.mutant});
  EXPECT_NE(figures.violation.find(run.violation), std::string::npos) << figures.violation;
  EXPECT_GT(figures.trace.size(), 1u);
}

TEST_P(MutantTest, IsCaughtWithEveryRankToldApart) {
  const MutantRun& run = GetParam();
  if (run.mutant == Mutant::kReplacedComesBack || run.mutant == Mutant::kQuarantineNotStored) {
    GTEST_SKIP() << "in a minute: explorer_slow_test";
  }
  const SymmetryFigures figures = CompareWithRanksToldApart(run.bounds, run.mutant);
  EXPECT_NE(figures.violation.find(run.violation), std::string::npos) << figures.violation;
}

constexpr Bounds kNoFault = {};
constexpr Bounds kCancel = {.cancels = 1};
constexpr Bounds kUnknown = {.unknown = 1};
constexpr Bounds kBesideAndCut = {
    .chunks = 0, .cancels = 1, .beside = 1, .faults = 1, .disorder = false};
// The run that replaced the other one fails.
constexpr Bounds kBesideAndUnknown = {.chunks = 1, .beside = 1, .unknown = 1};
constexpr Bounds kBesideAndCrash = {.chunks = 0, .beside = 1, .crashes = 1};
constexpr Bounds kFaultsAndCrash = {.crashes = 1, .faults = 2, .cuts = false};
constexpr Bounds kCancelAndFault = {.cancels = 1, .faults = 1, .cuts = false};

INSTANTIATE_TEST_SUITE_P(
    All, MutantTest,
    ::testing::Values(
        MutantRun{"VoteNotBoundToVersion", Mutant::kVoteNotBoundToVersion, kCancelAndFault,
                  "I5: one vote runs version"},
        MutantRun{"SentBeforeStored", Mutant::kSentBeforeStored, kNoFault,
                  "I6: a version was proposed before it was stored"},
        MutantRun{"VoteGatedOnReady", Mutant::kVoteGatedOnReady, kNoFault,
                  "I1: ranks vote together"},
        MutantRun{"CancelIsFinal", Mutant::kCancelIsFinal, kCancel,
                  "the daemon is IDLE and the ranks run another placement"},
        MutantRun{"UnknownIsNo", Mutant::kUnknownIsNo, kUnknown, "I1: ranks train under versions"},
        MutantRun{"NoSnapshot", Mutant::kNoSnapshot, kCancel, "I1: ranks train under versions"},
        MutantRun{"RecoveryLeftEarly", Mutant::kRecoveryLeftEarly, kNoFault,
                  "the daemon left RECOVERING"},
        MutantRun{"TermNotRaised", Mutant::kTermNotRaised, kNoFault,
                  "a rank was welcomed with a term below"},
        MutantRun{"ReplacedComesBack", Mutant::kReplacedComesBack, kBesideAndUnknown,
                  "a run that was replaced owns the job again"},
        MutantRun{"RunsNotStored", Mutant::kRunsNotStored, kBesideAndCrash,
                  "a run that was replaced owns the job again"},
        MutantRun{"AdvancingIsReplaced", Mutant::kAdvancingIsReplaced, kBesideAndCut,
                  "a newcomer took over a job whose steps advance"},
        MutantRun{"QuarantineNotStored", Mutant::kQuarantineNotStored, kFaultsAndCrash,
                  "QUARANTINE was forgotten"}),
    [](const auto& run) { return std::string(run.param.name); });

}  // namespace
}  // namespace eplb::explorer
