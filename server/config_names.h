// Names in the configuration: how messages show them, and which known one was probably meant.
#ifndef EPLB_SERVER_CONFIG_NAMES_H_
#define EPLB_SERVER_CONFIG_NAMES_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace eplb {

// As a message shows it: on one line, and not without end.
std::string OnOneLine(std::string_view text);

// "EPLB_POLICY_NAME" for "policy.name".
std::string VariableOf(std::string_view key);

// ", did you mean policy.name?" for the nearest of `known`; empty when none is within three letters
// to insert, delete or replace, and a third of the name. cost: O(|name| * the letters of `known`).
std::string Suggestion(std::string_view name, std::span<const std::string> known);

// errors: InvalidArgument unless it is 1..128 characters of [A-Za-z0-9._-], as a rank's Hello.
absl::Status CheckJobName(std::string_view name);

}  // namespace eplb

#endif  // EPLB_SERVER_CONFIG_NAMES_H_
