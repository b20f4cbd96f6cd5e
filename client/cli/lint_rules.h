// Every rule that a placement file must obey, checked on the file as written.
#ifndef EPLB_CLIENT_CLI_LINT_RULES_H_
#define EPLB_CLIENT_CLI_LINT_RULES_H_

#include <string>
#include <vector>

#include "proto/wire/json_value.h"

namespace eplb::cli {

struct Findings {
  std::vector<std::string> broken;    // one sentence each
  std::vector<std::string> warnings;  // replicas of an expert on one GPU
};

// Unlike PlacementFromJson, which stops at the first, this names all broken rules: shapes, ids in
// range, every expert in a slot, agreement of the three maps, padding, replica shares,
// slots_per_gpu. A rule that needs a broken number or a ragged map is left out. At most 100
// findings a rule; a last sentence counts the rest. cost: O(L * (S log S + E * X)).
Findings CheckPlacement(const wire::JsonValue& object);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_LINT_RULES_H_
