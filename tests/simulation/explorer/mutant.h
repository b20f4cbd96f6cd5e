// Wrong protocols, each with one rule broken. They are made around the real core and the real
// member: by the boundary's procedure, by the daemon's executor of effects, by what is told to the
// core. The product has no switch for them.
#pragma once

namespace eplb::explorer {

enum class Mutant {
  kNone,
  // A rank votes "I am PREPARED", not for what.
  kVoteNotBoundToVersion,
  // The daemon's executor sends a proposal before it writes the job.
  kSentBeforeStored,
  // A rank that is not PREPARED goes on without voting.
  kVoteGatedOnReady,
  // A cancelled proposal counts as dropped by all ranks; their later answers are ignored.
  kCancelIsFinal,
  // A rank without the result of the second vote drops the chunk and trains on.
  kUnknownIsNo,
  // A vote's result is applied to what the rank is PREPARED for when it comes.
  kNoSnapshot,
  // Ranks that said nothing yet count as running what the first one runs.
  kRecoveryLeftEarly,
  // The daemon does not look at the highest term in Hello.
  kTermNotRaised,
  // A run that was replaced may come back: its number and its name are not looked at.
  kReplacedComesBack,
  // The store does not hold which runs are gone, nor the number of the newest.
  kRunsNotStored,
  // A newcomer takes over a job whose steps advance.
  kAdvancingIsReplaced,
  // The store does not hold QUARANTINE.
  kQuarantineNotStored,
  // A daemon that lost its store does not recall the memory that a rank carries.
  kMemoryNotRecalled,
};

}  // namespace eplb::explorer
