// Which known name was probably meant: for messages about a key, a flag, a command or a policy.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace eplb {

// ", did you mean policy.name?" for the nearest of `known`; empty when none is within three letters
// to insert, delete, replace or swap, and a third of the name. cost: O(|name| * the letters
// of `known`).
std::string Suggestion(std::string_view name, std::span<const std::string> known);

}  // namespace eplb
