// Every state that three ranks and a daemon can reach within bounds, and what is wrong in any.
//
// The product itself runs: core::Core decides, eplb::Member answers and votes. The explorer is the
// network, the disk, the clock, the policy, and the procedure of a boundary (Enter, Decide, then
// OnApplied, OnDropped or OnEnded, as client/boundary.cc).
//
// It is kept small without leaving anything out:
// - One run of core or member for each pair of state and event; the rest is table look-up.
// - Ranks are interchangeable: one state is kept of those that differ only in the names of ranks.
//   Only NeedPlacement looks at a rank's number; there every order is tried.
//   Options::check_symmetry compares the decisions of the core with those that it makes when the
//   ranks are renamed. symmetry.h compares the states with those that remain when ranks are told
//   apart first and renamed then.
// - Actions of one rank that no other part can see in between are one step: the checks of a Propose
//   between Begin and Finish (PREPARED is null, so nothing can change the input of Finish); Decide
//   and the transfer up to the second vote (the member does not change); giving up a stream and
//   opening the next (nothing is received in between); the outcome of a vote on a rank that entered
//   it without PREPARED.
// - A vote that no rank enters PREPARED is left out, because it changes nothing. A rank that is not
//   PREPARED enters one at its latest moment: with the others, or before it becomes PREPARED.
// - Crashes: see Expansion::Turn. A message is lost, doubled or overtaken at the moment at which it
//   would arrive, because no part can see a difference before that.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/explorer/mutant.h"
#include "tests/simulation/explorer/world.h"

namespace eplb::explorer {

struct Options {
  Bounds bounds;
  Mutant mutant = Mutant::kNone;
  uint64_t max_states = uint64_t{1} << 31;
  bool quarantine_is_wrong = false;
  bool check_symmetry = false;
  bool verbose = false;  // a line on stderr every million states
};

struct Figures {
  uint64_t states = 0;
  uint64_t steps = 0;         // from state to state
  uint64_t settled = 0;       // states where no process has anything to do
  uint64_t quarantined = 0;   // states in QUARANTINE
  uint64_t logs_checked = 0;  // different logs of the ranks that the validator read
  uint64_t depth = 0;         // depth of the state farthest from the start
  size_t core_states = 0;
  size_t rank_states = 0;
  bool complete = false;           // false: a violation or max_states ended it
  std::string violation;           // fault of the nearest wrong state; empty when there is none
  std::vector<std::string> trace;  // from the start to it, a line a step
};

// Breadth first. cost: about 2 us and 50 bytes a state.
Figures Explore(const Options& options);

std::string FiguresText(const Figures& figures);

}  // namespace eplb::explorer
