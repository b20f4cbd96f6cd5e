// Which of the steps that ranks report are believed: one rule for Hello, load reports and answers.
#pragma once

#include <cstdint>

namespace eplb::core {

struct Run;

// The highest steps of two different ranks; -1: none.
struct StepFront {
  int64_t first = -1;
  int32_t rank = -1;  // the rank of `first`
  int64_t second = -1;
};

void Advance(StepFront& front, int32_t rank, int64_t step);
// Returns the highest step of any other rank; -1 if none.
int64_t OthersStep(const StepFront& front, int32_t rank);

// Returns true for a step more than `windows` windows ahead of the rank's own last step and of all
// other ranks, and remembers such a step. It is believed once another rank reports a step within a
// window of it: if messages of all ranks were lost, all of them are ahead. A rank that goes on
// window by window is believed as well, because the others may be silent.
bool LeapsAhead(Run& run, int32_t rank, int64_t step, int64_t windows);

enum class StepClaim {
  kBelieved,
  kUnproved,  // may be right, but is not a step of the run yet
  kLeap,      // far ahead of all known steps
};

// Checks the step of a rank's Hello, and remembers it. The first step of a run may be any, because
// a run may go on from a checkpoint. With several ranks it is believed once a second rank reports a
// step within `windows` windows of it. Both steps then enter the front.
StepClaim CheckHello(Run& run, int32_t rank, int64_t step, int64_t windows);

// Checks a step that a rank reports while it trains. Beside the rule of CheckHello, a rank that
// goes on from its own claim is believed while no other rank's step is known. Later a leap
// (LeapsAhead) is believed once the same rank goes on from it and no other rank is connected.
StepClaim EvaluateStep(Run& run, int32_t rank, int64_t step, int64_t windows);

}  // namespace eplb::core
