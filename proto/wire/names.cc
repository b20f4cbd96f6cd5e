#include "proto/wire/names.h"

#include <algorithm>

#include "absl/strings/ascii.h"

#include "base/errors.h"

namespace eplb::wire {

namespace {

template <class Predicate>
absl::Status Check(std::string_view field, std::string_view name, size_t max_length,
                   const char* alphabet, Predicate allowed) {
  const absl::string_view what(field.data(), field.size());
  if (name.empty() || name.size() > max_length) {
    return InvalidInput(what, " has ", name.size(), " characters, expected 1..", max_length);
  }
  if (!std::ranges::all_of(name, allowed)) {
    return InvalidInput(what, " has a character outside ", alphabet);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlainName(std::string_view field, std::string_view name, size_t max_length) {
  return Check(field, name, max_length, "[A-Za-z0-9._-]", [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

absl::Status CheckPrintableName(std::string_view field, std::string_view name) {
  return Check(field, name, kMaxNameLength, "printable ASCII without blanks",
               [](unsigned char c) { return absl::ascii_isgraph(c); });
}

}  // namespace eplb::wire
