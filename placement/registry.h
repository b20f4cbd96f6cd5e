// Policies by name: one row each.
#ifndef EPLB_PLACEMENT_REGISTRY_H_
#define EPLB_PLACEMENT_REGISTRY_H_

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/policies/deepseek_policy.h"
#include "placement/policy.h"

namespace eplb {

// What a policy may be told; a policy takes the options it knows.
struct PolicyOptions {
  TieBreak tie_break = TieBreak::kStable;  // order of equal loads in `deepseek`
  bool global = false;                     // look at neither expert groups nor nodes
};

inline constexpr std::string_view kDefaultPolicyName = "deepseek";

// errors: InvalidArgument for an unknown name; the message lists the known ones.
absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(std::string_view name,
                                                   const PolicyOptions& options);

// In the order of the table; none twice.
std::vector<std::string_view> PolicyNames();

}  // namespace eplb

#endif  // EPLB_PLACEMENT_REGISTRY_H_
