// Which of the steps that ranks tell are believed: one rule for Hello, load reports and answers. A
// file of its own because each of them is handled in another one.
#ifndef EPLB_SERVER_CORE_STEP_CLAIMS_H_
#define EPLB_SERVER_CORE_STEP_CLAIMS_H_

#include <cstdint>

namespace eplb::core {

struct Incarnation;

enum class StepClaim {
  kBelieved,
  kUnproved,  // maybe right, and not yet a step of the launch
  kLeap,      // far ahead of all that is known
};

// What a rank's Hello tells. The first step of a launch may be any, since it may go on from a
// checkpoint. So of several ranks it is believed once a second one tells a step within `windows`
// windows of it; both are then taken into the front. Remembers the step.
StepClaim JudgeHello(Incarnation& incarnation, int32_t rank, int64_t step, int64_t windows);

// What a rank tells while it trains. The same, and a rank that goes on from its own claim is
// believed while nobody else's step is known. Later a leap (LeapsAhead) is believed once the same
// rank, alone connected, goes on from it.
StepClaim JudgeStep(Incarnation& incarnation, int32_t rank, int64_t step, int64_t windows);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_STEP_CLAIMS_H_
