// Policies by name: one row each. threads: safe, no state.
#ifndef EPLB_PLACEMENT_POLICIES_REGISTRY_H_
#define EPLB_PLACEMENT_POLICIES_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/policies/deepseek_layer.h"
#include "placement/policy.h"
#include "placement/topology.h"

namespace eplb {

// What a policy may be told; a policy takes the options it knows.
struct PolicyOptions {
  TieBreak tie_break = TieBreak::kStable;  // order of equal loads in `deepseek`
  std::optional<Hierarchy> hierarchy;      // none given: the policy's own rule
  Effort effort = Effort::kDefault;
  bool allow_duplicates = false;             // two replicas of an expert on one GPU where it helps
  std::optional<int32_t> max_moves_per_gpu;  // transfers into a GPU per layer; none given: the
                                             // policy's own rule
};

inline constexpr std::string_view kDefaultPolicyName = "balanced";
// Of the daemon. A job decides again and again, on a load that has changed by the time it switches:
// about the balancedness of `balanced` at a seventh of the bytes (docs/choosing-a-policy.md).
inline constexpr std::string_view kServicePolicyName = "incremental";

// errors: InvalidArgument for an unknown name; the message lists the known ones.
absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(std::string_view name,
                                                   const PolicyOptions& options);

// In the order of the table; none twice.
std::vector<std::string_view> PolicyNames();

}  // namespace eplb

#endif  // EPLB_PLACEMENT_POLICIES_REGISTRY_H_
