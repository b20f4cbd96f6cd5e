// Length of a job's load windows: short while its loads change, longer while they are steady.
#pragma once

#include <cstdint>

#include "server/core/state/state.h"

namespace eplb::core {

// The daemon's shortest windows: a change must pay back within a few of them. They last at least
// this long, and kSolvesPerWindow times as long as the newest decision took to compute.
inline constexpr int32_t kLeastWindowSteps = 4;
inline constexpr double kLeastWindowSeconds = 0.2;
inline constexpr double kSolvesPerWindow = 4;

// Notes the newest complete window of the job, with tokens, and wants windows twice or half as
// long. Of three windows in a row the first two predict the third: if their mean is closer to it
// than the second alone, noise outweighs change, and windows become longer; if it is farther away,
// they become shorter. longest: steps. cost: O(L * E).
void NoteWindowForPace(Job& job, int32_t longest);

// Returns the wanted length in steps, at most `longest`: that of the run's own windows until three
// of them were compared. Policies that decide every policy.every_steps get `longest`. REQUIRES:
// job.current.
int32_t WantedWindowSteps(const Job& job, int32_t longest);

}  // namespace eplb::core
