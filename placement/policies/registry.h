// Policies by name: one row each. threads: safe, no state.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/policy.h"

namespace eplb {

// Use of a policy as a candidate of `auto`. kFirst: a new job begins with it.
enum class TriedFor { kNever, kLater, kFirst };

// Properties of a policy, so that callers need not compare names.
struct PolicyTraits {
  // It changes the current placement, and refuses to plan without one.
  bool needs_previous = false;
  // It computes what DeepSeek's reference computes, in float32: only the order of equal loads and
  // one domain can be asked for, and GPUs are equally fast.
  bool follows_reference = false;
  // It stands for the candidates of a back-test (placement/backtest). A plan without a history is
  // that of the policy which the back-test begins with.
  bool chooses = false;
  // It aims at exact splits of batches; with equal shares its answer is that of `incremental`.
  bool aims_at_splits = false;
  TriedFor tried_for_equal = TriedFor::kNever;  // jobs with equal shares
  TriedFor tried_for_batch = TriedFor::kNever;  // jobs that split each batch exactly
};

inline constexpr std::string_view kDefaultPolicyName = "balanced";
// Made for jobs that split every batch exactly (SplitMode::kBatch).
inline constexpr std::string_view kSplitPolicyName = "flow";
// A few moves at a time, each of which pays.
inline constexpr std::string_view kIncrementalPolicyName = "incremental";
// Chooses by a back-test on the job's own windows.
inline constexpr std::string_view kAutoPolicyName = "auto";
// The daemon's default. A job's own windows show which policy fits it (docs/choosing-a-policy.md).
inline constexpr std::string_view kServicePolicyName = kAutoPolicyName;
// The policy of other systems, to compare with.
inline constexpr std::string_view kReferencePolicyName = "deepseek";

// errors: InvalidArgument for an unknown name, with the known ones, and for a hierarchy that the
// policy does not take.
absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(std::string_view name,
                                                   const PolicyOptions& options);

// Returns no trait for an unknown name.
PolicyTraits TraitsOf(std::string_view name);

// The name of a policy, and its traits, which are looked up when the name is read.
struct NamedPolicy : PolicyTraits {
  template <std::convertible_to<std::string_view> Name>
  NamedPolicy(const Name& given)  // NOLINT(google-explicit-constructor): options are set by name
      : PolicyTraits(TraitsOf(given)), name(given) {}

  std::string name;

  bool operator==(const NamedPolicy& other) const { return name == other.name; }
};

// In the order of the table; none twice.
std::vector<std::string> PolicyNames();

}  // namespace eplb
