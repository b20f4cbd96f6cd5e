// Replaces the process by a fresh one of the same program, which inherits one text.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace eplb {

// True if this process began by BeginAnew.
bool HasBegunAnew();
// Returns the text that BeginAnew was given and closes its descriptor; nullopt if it was given
// none. REQUIRES: HasBegunAnew(), and no earlier call. errors: Unavailable, with the system's
// reason.
absl::StatusOr<std::optional<std::string>> InheritedText();

// Returns a nameless file in memory with `text`, for BeginAnew. errors: Unavailable, with the
// system's reason.
absl::StatusOr<int> HoldText(const std::string& text);
// Returns only if the program cannot be run. No thread, memory or descriptor above stderr is left,
// apart from `text`. arguments: those of main. text: of HoldText.
void BeginAnew(char** arguments, std::optional<int> text);

}  // namespace eplb
