// Which GPU gets which copy of an echo: exchanges that keep more tokens on their source GPU.
#ifndef EPLB_PLACEMENT_ECHO_ECHO_LOCALITY_H_
#define EPLB_PLACEMENT_ECHO_ECHO_LOCALITY_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

#include "placement/echo/echo_plan.h"

namespace eplb {

// Exchanges the copies of two GPUs of a domain, or moves a copy to a free spare slot, as long as
// this keeps more tokens on the GPU of their rank. The number of replicas and what homes keep stay
// as they are; the peak does not rise, and may fall. Returns how many tokens more stay on their
// GPU.
// sources: [G, E], row by row, tokens of the rank of each GPU; rank g has GPU g. A copy with x
// tokens on a GPU whose rank has y tokens of its expert keeps min(x, y) there.
// Local search: the first exchange that helps, in rising order of spare slots, for at most four
// rounds over all pairs. Equal input gives equal plans. It helps where ranks differ in their
// tokens; with equal ranks nothing is exchanged.
// errors: InvalidArgument naming the expert: another number of sources than G * E, a negative one,
// a plan of another shape, or sources that do not sum to the plan's tokens. cost: O(G * E + rounds
// * X^2).
absl::StatusOr<int64_t> KeepAtSource(const EchoPlanner& planner, std::span<const int64_t> sources,
                                     EchoPlan& plan);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_ECHO_ECHO_LOCALITY_H_
