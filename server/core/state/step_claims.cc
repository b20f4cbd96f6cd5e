// Compares a claimed step with the other ranks' steps and claims.
#include "server/core/state/step_claims.h"

#include <algorithm>
#include <cstdlib>

#include "server/core/state/state.h"

namespace eplb::core {

namespace {

bool NothingIsKnown(const Run& run) { return run.front.first < 0; }

// Returns how many steps ranks of one run may be apart.
int64_t Distance(const Run& run, int64_t windows) {
  return windows * std::max(run.report_every, run.report_interval_change.report_every);
}

// Returns true if the step is above the rank's newest claim by at most `distance`.
bool GoesOn(const Rank& rank, int64_t step, int64_t distance) {
  return rank.leapt_to >= 0 && step > rank.leapt_to && step - rank.leapt_to <= distance;
}

// Returns true if another rank claims nearly the same step. That claim is then believed as well.
bool IsConfirmed(Run& run, int32_t rank, int64_t step, int64_t distance) {
  for (int32_t other = 0; other < run.world_size(); ++other) {
    Rank& witness = run.ranks[other];
    if (other == rank || witness.leapt_to < 0) continue;
    if (std::abs(witness.leapt_to - step) > distance) continue;
    witness.step = witness.leapt_to;
    Advance(run.front, other, witness.step);
    return true;
  }
  return false;
}

StepClaim BelieveFirst(Run& run) {
  // A run that began before any step was believed began at step 0.
  run.rate.told.clear();
  return StepClaim::kBelieved;
}

}  // namespace

void Advance(StepFront& front, int32_t rank, int64_t step) {
  if (rank == front.rank) {
    front.first = std::max(front.first, step);
  } else if (step > front.first) {
    front.second = front.first;
    front.first = step;
    front.rank = rank;
  } else {
    front.second = std::max(front.second, step);
  }
}

int64_t OthersStep(const StepFront& front, int32_t rank) {
  return rank == front.rank ? front.second : front.first;
}

bool LeapsAhead(Run& run, int32_t rank, int64_t step, int64_t windows) {
  const int64_t others = OthersStep(run.front, rank);
  if (others < 0) return false;
  const int64_t window = Distance(run, 1);
  if (step - std::max(others, run.ranks[rank].step) <= windows * window) return false;
  run.ranks[rank].leapt_to = step;
  for (int32_t other = 0; other < run.world_size(); ++other) {
    const int64_t leapt = run.ranks[other].leapt_to;
    if (other != rank && leapt >= 0 && std::abs(leapt - step) <= window) return false;
  }
  return true;
}

StepClaim CheckHello(Run& run, int32_t rank, int64_t step, int64_t windows) {
  if (!NothingIsKnown(run)) {
    return LeapsAhead(run, rank, step, windows) ? StepClaim::kLeap : StepClaim::kBelieved;
  }
  run.ranks[rank].leapt_to = step;
  const bool believed =
      run.world_size() == 1 || IsConfirmed(run, rank, step, Distance(run, windows));
  return believed ? BelieveFirst(run) : StepClaim::kUnproved;
}

StepClaim EvaluateStep(Run& run, int32_t rank, int64_t step, int64_t windows) {
  Rank& teller = run.ranks[rank];
  const int64_t distance = Distance(run, windows);
  const bool goes_on = GoesOn(teller, step, distance);
  if (!NothingIsKnown(run)) {
    const bool leaps = LeapsAhead(run, rank, step, windows);
    const bool left_alone = run.num_connected == 1;
    return leaps && !(goes_on && left_alone) ? StepClaim::kLeap : StepClaim::kBelieved;
  }
  // Such a step is in a window from before the Hello, which the rank kept while it was away.
  if (step <= teller.leapt_to) return StepClaim::kUnproved;
  teller.leapt_to = step;
  const bool believed = goes_on || IsConfirmed(run, rank, step, distance);
  return believed ? BelieveFirst(run) : StepClaim::kLeap;
}

}  // namespace eplb::core
