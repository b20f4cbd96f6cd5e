#include "placement/policies/registry.h"

#include <string>

#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/suggestion.h"
#include "placement/policies/auto_policy.h"
#include "placement/policies/balanced_policy.h"
#include "placement/policies/deepseek_policy.h"
#include "placement/policies/flow_policy.h"
#include "placement/policies/incremental_policy.h"

namespace eplb {
namespace {

struct PolicyRow {
  std::string_view name;
  PolicyTraits traits;
  std::unique_ptr<Policy> (*make)(const PolicyOptions& options);
};

constexpr PolicyRow kPolicies[] = {
    {kDefaultPolicyName, {.tried_for_equal = TriedFor::kLater}, &MakeBalancedPolicy},
    {kReferencePolicyName, {.follows_reference = true}, &MakeDeepseekPolicy},
    {kIncrementalPolicyName,
     {.needs_previous = true,
      .tried_for_equal = TriedFor::kFirst,
      .tried_for_batch = TriedFor::kLater},
     &MakeIncrementalPolicy},
    {kAutoPolicyName, {.chooses = true}, &MakeAutoPolicy},
    {kSplitPolicyName,
     {.aims_at_splits = true, .tried_for_batch = TriedFor::kFirst},
     &MakeFlowPolicy},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(std::string_view name,
                                                   const PolicyOptions& options) {
  for (const PolicyRow& row : kPolicies) {
    if (row.name != name) continue;
    if (row.traits.follows_reference && options.hierarchy == Hierarchy::kSoft) {
      return InvalidInput("policy ", std::string(name), " does not take hierarchy soft");
    }
    return row.make(options);
  }
  const std::vector<std::string> names = PolicyNames();
  return InvalidInput("unknown policy \"", std::string(name), "\", expected one of ",
                      absl::StrJoin(names, ", "), Suggestion(name, names));
}

PolicyTraits TraitsOf(std::string_view name) {
  for (const PolicyRow& row : kPolicies) {
    if (row.name == name) return row.traits;
  }
  return {};
}

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const PolicyRow& row : kPolicies) names.emplace_back(row.name);
  return names;
}

}  // namespace eplb
