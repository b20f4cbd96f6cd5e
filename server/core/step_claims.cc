#include "server/core/step_claims.h"

#include <algorithm>
#include <cstdlib>

#include "server/core/state.h"
#include "server/core/step_rate.h"

namespace eplb::core {
namespace {

bool NothingIsKnown(const Incarnation& incarnation) { return incarnation.front.first < 0; }

// Steps that ranks of one launch may be apart.
int64_t Distance(const Incarnation& incarnation, int64_t windows) {
  return windows * std::max(incarnation.report_every, incarnation.pace.report_every);
}

// Whether the step lies above the rank's newest claim, and not far.
bool GoesOn(const Rank& rank, int64_t step, int64_t distance) {
  return rank.leapt_to >= 0 && step > rank.leapt_to && step - rank.leapt_to <= distance;
}

// Another rank claims nearly the same: then that one is believed too.
bool IsConfirmed(Incarnation& incarnation, int32_t rank, int64_t step, int64_t distance) {
  for (int32_t other = 0; other < incarnation.world_size(); ++other) {
    Rank& witness = incarnation.ranks[other];
    if (other == rank || witness.leapt_to < 0) continue;
    if (std::abs(witness.leapt_to - step) > distance) continue;
    witness.step = witness.leapt_to;
    Advance(incarnation.front, other, witness.step);
    return true;
  }
  return false;
}

StepClaim BelieveFirst(Incarnation& incarnation) {
  // A launch that began before any step was believed was told step 0.
  incarnation.rate.told.clear();
  return StepClaim::kBelieved;
}

}  // namespace

StepClaim JudgeHello(Incarnation& incarnation, int32_t rank, int64_t step, int64_t windows) {
  if (!NothingIsKnown(incarnation)) {
    return LeapsAhead(incarnation, rank, step, windows) ? StepClaim::kLeap : StepClaim::kBelieved;
  }
  incarnation.ranks[rank].leapt_to = step;
  const bool believed = incarnation.world_size() == 1 ||
                        IsConfirmed(incarnation, rank, step, Distance(incarnation, windows));
  return believed ? BelieveFirst(incarnation) : StepClaim::kUnproved;
}

StepClaim JudgeStep(Incarnation& incarnation, int32_t rank, int64_t step, int64_t windows) {
  Rank& teller = incarnation.ranks[rank];
  const int64_t distance = Distance(incarnation, windows);
  const bool goes_on = GoesOn(teller, step, distance);
  if (!NothingIsKnown(incarnation)) {
    const bool leaps = LeapsAhead(incarnation, rank, step, windows);
    const bool left_alone = incarnation.num_connected == 1;
    return leaps && !(goes_on && left_alone) ? StepClaim::kLeap : StepClaim::kBelieved;
  }
  // Windows from before its Hello, which it kept while it was away.
  if (step <= teller.leapt_to) return StepClaim::kUnproved;
  teller.leapt_to = step;
  const bool believed = goes_on || IsConfirmed(incarnation, rank, step, distance);
  return believed ? BelieveFirst(incarnation) : StepClaim::kLeap;
}

}  // namespace eplb::core
