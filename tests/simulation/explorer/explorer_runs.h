// The explorations that tests hold, with the number of states of each. A change of the protocol
// changes the number: look why, then write the new one into the test's table.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>

#include "tests/simulation/explorer/explorer.h"

namespace eplb::explorer {

struct ExplorerRun {
  const char* name;
  Bounds bounds;
  uint64_t states;
  uint64_t quarantined;  // part of `states` in QUARANTINE
};

// GoogleTest names a case by what it prints.
inline void PrintTo(const ExplorerRun& run, std::ostream* out) { *out << run.name; }

class ExplorerTest : public ::testing::TestWithParam<ExplorerRun> {
 protected:
  void ExpectExhaustive() {
    const ExplorerRun& run = GetParam();
    const Figures figures = Explore({.bounds = run.bounds});
    std::string trace;
    for (const std::string& line : figures.trace) trace += line + "\n";
    EXPECT_EQ(figures.violation, "") << trace;
    EXPECT_TRUE(figures.complete);
    EXPECT_EQ(figures.states, run.states) << FiguresText(figures);
    EXPECT_EQ(figures.quarantined, run.quarantined);
  }
};

inline std::string NameOfRun(const ::testing::TestParamInfo<ExplorerRun>& info) {
  return info.param.name;
}

}  // namespace eplb::explorer
