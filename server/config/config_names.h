// Names in the configuration: how messages show them.
#ifndef EPLB_SERVER_CONFIG_CONFIG_NAMES_H_
#define EPLB_SERVER_CONFIG_CONFIG_NAMES_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace eplb {

// As a message shows it: on one line, and not without end.
std::string OnOneLine(std::string_view text);

// "EPLB_POLICY_NAME" for "policy.name".
std::string VariableOf(std::string_view key);

// errors: InvalidArgument unless it is 1..128 characters of [A-Za-z0-9._-], as a rank's Hello.
absl::Status CheckJobName(std::string_view name);

}  // namespace eplb

#endif  // EPLB_SERVER_CONFIG_CONFIG_NAMES_H_
