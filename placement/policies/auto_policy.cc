#include "placement/policies/auto_policy.h"

#include "placement/policies/balanced_policy.h"
#include "placement/policies/incremental_policy.h"

namespace eplb {
namespace {

class AutoPolicy final : public Policy {
 public:
  explicit AutoPolicy(const PolicyOptions& options)
      : from_previous_(MakeIncrementalPolicy(options)),
        from_nothing_(MakeBalancedPolicy(options)) {}

  std::string_view name() const override { return "auto"; }

  absl::StatusOr<Placement> Solve(const PolicyInput& input) const override {
    return (input.previous != nullptr ? from_previous_ : from_nothing_)->Solve(input);
  }

 private:
  const std::unique_ptr<Policy> from_previous_;
  const std::unique_ptr<Policy> from_nothing_;
};

}  // namespace

std::unique_ptr<Policy> MakeAutoPolicy(const PolicyOptions& options) {
  return std::make_unique<AutoPolicy>(options);
}

}  // namespace eplb
