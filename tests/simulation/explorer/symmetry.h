// Checks that nothing is lost when states that differ only in the names of ranks count as one.
#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/explorer/mutant.h"
#include "tests/simulation/explorer/world.h"

namespace eplb::explorer {

struct SymmetryFigures {
  uint64_t kept = 0;        // states of the exploration as Explore makes it
  uint64_t told_apart = 0;  // states when every rank is told apart
  uint64_t orbits = 0;      // states of told_apart that remain when ranks are renamed
  uint64_t missed = 0;      // orbits that are not among the kept ones
  std::string violation;    // fault of the nearest state that is wrong with every rank told apart
};

// Explores the bounds twice. cost: as Explore, and again for each state that is told apart.
SymmetryFigures CompareWithRanksToldApart(const Bounds& bounds, Mutant mutant = Mutant::kNone);

}  // namespace eplb::explorer
